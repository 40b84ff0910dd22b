// DeepGEMM's bf16 GEMM on Hopper, also batched: results in bf16 or fp32.
#include "providers/deep_gemm/wait.cuh"

#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
