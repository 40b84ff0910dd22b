// D0 as a kernel of its own: gemm_producer<MainQ, …> where split_k is 1, else the one below. The grid is (m tiles, n
// tiles, splits). Before the wait: see gemm_frame.cuh.
#include "ops/main_q.cuh"
#include "standalone/gemm_frame.cuh"

namespace mktune {

// split_k > 1. `partials` is [split_k, rows, 16384], `tile_counters` [m tiles, n tiles].
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    main_q_splits(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                  const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales, float* partials,
                  u32* tile_counters, Bf16* q, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, MainQ::kGroups / kSplitK>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<MainQ, Gemm, kSplitK>();
  volatile u32* flag = reinterpret_cast<u32*>(shared);  // in the ring, which nobody reads any more by then
  run_gemm_cta<MainQ, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        add_splits<MainQ, Gemm, kSplitK>(sum, tile, partials, tile_counters, q, rows, thread, flag, kConsumerBarrier);
      });
}

}  // namespace mktune
