// G: y = attention · W_oᵀ in bf16. The grid is (m tiles, n tiles, splits), so CTAs that read the same weights start
// together. Before the wait: see bf16_frame.cuh.
#include "ops/gemm_results.cuh"
#include "standalone/bf16_frame.cuh"

namespace mktune {

struct OutputProjection {
  static constexpr int kN = 6144, kK = 2048, kSteps = kK / kBf16Step;
};

// The tile's sums rounded to bf16; four lanes write sixteen bytes of a row.
template <class Gemm>
MKTUNE_DEVICE void store_rows(const typename Gemm::Accumulator& sum, const TileCoordinates& tile, Bf16* y, int rows,
                              int thread) {
  if (!Gemm::has_sums(thread)) return;
  const int lane = thread % 32, column = tile.n + thread % 128 / 32 * 16 + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < Gemm::kHalves; ++half)
#pragma unroll
    for (int j = 0; j < Gemm::kTokenGroups; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 pair = transposed(to_bf16x2(sum[half][j][2 * h], sum[half][j][2 * h + 1]));
        const int m = tile.m + 8 * j + lane / 4, n = column + Gemm::part(thread, half) * 64 + h * 8;
        if (m < rows) *reinterpret_cast<u32*>(y + static_cast<u64>(m) * OutputProjection::kN + n) = pair;
      }
}

// `partials` [split_k, rows, 6144] and `tile_counters` [m tiles, n tiles] are used where split_k > 1.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    output_projection(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                      float* partials, u32* tile_counters, Bf16* y, int rows, int l2_steps) {
  using Gemm = Bf16Gemm<kMma, Major::kK, kBlockM, kBlockN, kStages, kWarps>;
  constexpr int kSteps = OutputProjection::kSteps / kSplitK;
  static_assert(kSteps * kSplitK == OutputProjection::kSteps, "split_k must divide the steps of K");
  extern __shared__ __align__(1024) u8 shared[];
  const int m_tile = blockIdx.x, n_tile = blockIdx.y, split = blockIdx.z, k = split * kSteps * kBf16Step;
  const TileCoordinates at{m_tile * kBlockM, n_tile * kBlockN, m_tile, n_tile, static_cast<int>(gridDim.y), split, 0, 0};
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kFlagAt);
  run_bf16_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, activations, {at.m, at.n, k, k, kSteps}, l2_steps, [](int) {},
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (kSplitK > 1)
          add_splits<OutputProjection, Gemm, kSplitK>(sum, at, partials, tile_counters, y, rows, thread, flag,
                                                      kBf16ConsumerBarrier);
        else
          store_rows<Gemm>(sum, at, y, rows, thread);
      });
}

}  // namespace mktune
