// DeepGEMM's bf16 GEMM on Blackwell, by tcgen05.
#include "providers/deep_gemm/wait.cuh"

#include <deep_gemm/impls/sm100_bf16_gemm.cuh>
