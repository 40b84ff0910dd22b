// D2 as a kernel of its own. The grid is (m tiles, heads · n tiles), so CTAs that read the same weights start together.
// The n tiles of a head share its RoPE, each one taking every n_tiles-th token. Before the wait: see bf16_frame.cuh.
#include "ops/q_absorb.cuh"
#include "standalone/bf16_frame.cuh"

namespace mktune {

template <Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    q_absorb(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations, const Bf16* q,
             const float* cos, const float* sin, const i64* positions, Bf16* mla_q, int rows, int l2_steps) {
  using Gemm = Bf16Gemm<kMma, Major::kN, kBlockM, kBlockN, kStages, kWarps>;
  constexpr int kTiles = QAbsorb::kN / kBlockN;
  static_assert(kBlockM * kBlockN * 2 <= Gemm::kFlagAt, "the results are staged in the ring");
  extern __shared__ __align__(1024) u8 shared[];
  const int m = blockIdx.x * kBlockM, head = blockIdx.y / kTiles, n_tile = blockIdx.y % kTiles;
  const typename Gemm::Tile tile{m, n_tile * kBlockN, head * QAbsorb::kNope, head * QAbsorb::kHead, QAbsorb::kSteps};
  const QAbsorbRope<(kBlockM + kTiles - 1) / kTiles, 64> rope{q, cos, sin, positions, mla_q};
  run_bf16_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, activations, tile, l2_steps,
      [&](int thread) {
        delay_before_results();
        rope.run(head, m + n_tile, kTiles, min(m + kBlockM, rows), thread);
      },
      [&](typename Gemm::Accumulator& sum, int thread) {
        named_barrier_sync(kBf16ConsumerBarrier, Gemm::kThreads);  // nobody reads the ring any more
        QAbsorbStore<Gemm>::run(sum, tile, mla_q, head, rows, shared, thread);
      });
}

}  // namespace mktune
