"""How the ops' kernels are launched, a module for each."""
