// DeepGEMM's FP8 GEMM on Blackwell, by tcgen05: scales are powers of two, four exponents packed in a word.
#include "providers/deep_gemm/wait.cuh"

#include <deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh>
