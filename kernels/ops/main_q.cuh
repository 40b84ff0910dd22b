// D0: q = q_lora · W_qbᵀ (block-FP8), rounded to bf16. Without splits a tile writes its columns straight from its
// registers; with splits the last one of a tile adds them up (gemm_results.cuh).
#pragma once
#include "ops/block_fp8_gemm.cuh"
#include "ops/gemm_results.cuh"

namespace mktune {

struct MainQ : GemmProblem<16384, 2048> {};

}  // namespace mktune
