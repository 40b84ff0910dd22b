// DeepGEMM's paged scores of the indexer on Hopper.
#include "providers/deep_gemm/wait.cuh"

#include <deep_gemm/impls/sm90_fp8_paged_mqa_logits.cuh>
