// DeepGEMM's FP8 GEMM with 1 × 128 scales of activations and 128 × 128 scales of weights, on Hopper.
#include "providers/deep_gemm/wait.cuh"

#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
