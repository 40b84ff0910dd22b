"""Kernels from source at run time: `build.build` is the one entry."""
