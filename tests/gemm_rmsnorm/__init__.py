"""A package of one's own, as MKTUNE_PATH takes it: one workload, two ops, their kernels and a search space.

Nothing in mktune knows it. The GEMM is written with mktune's parts, the norm from scratch.
"""
