"""The workload, `gemm_rmsnorm`."""
