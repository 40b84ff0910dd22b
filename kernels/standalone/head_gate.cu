// C0 as a kernel of its own. Before the wait: see bf16_frame.cuh.
#include "ops/head_gate.cuh"
#include "standalone/bf16_frame.cuh"

namespace mktune {

template <Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps>
using GateGemm = Bf16Gemm<kMma, Major::kK, kBlockM, kBlockN, kStages, kWarps, HeadGate::kN>;

// finalizer = last_arriver. The grid is (m tiles, 1, splits). `partials` [split_k, rows, 32] and `tile_counters` [m
// tiles] are used where split_k > 1.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    head_gate(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations, float* partials,
              u32* tile_counters, float* g, int rows, int l2_steps) {
  using Gemm = GateGemm<kMma, kBlockM, kBlockN, kStages, kWarps>;
  constexpr int kSteps = HeadGate::kSteps / kSplitK;
  static_assert(kSteps * kSplitK == HeadGate::kSteps, "split_k must divide the steps of K");
  extern __shared__ __align__(1024) u8 shared[];
  const int m_tile = blockIdx.x, split = blockIdx.z, m = m_tile * kBlockM, k = split * kSteps * kBf16Step;
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kFlagAt);
  run_bf16_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, activations, {m, 0, k, k, kSteps}, l2_steps, [](int) {},
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (kSplitK > 1)
          HeadGateSplits<Gemm, kSplitK>::run(sum, m, split, partials, tile_counters + m_tile, g, rows, thread, flag,
                                             kBf16ConsumerBarrier);
        else
          store_gate<Gemm>(sum, m, g, rows, thread);
      });
}

// finalizer = cluster. The grid is (splits, m tiles), a cluster the splits of a tile.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    head_gate_cluster(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                      float* g, int rows, int l2_steps) {
  using Gemm = GateGemm<kMma, kBlockM, kBlockN, kStages, kWarps>;
  constexpr int kSteps = HeadGate::kSteps / kSplitK;
  static_assert(kSteps * kSplitK == HeadGate::kSteps, "split_k must divide the steps of K");
  extern __shared__ __align__(1024) u8 shared[];
  const int split = blockIdx.x, m = blockIdx.y * kBlockM, k = split * kSteps * kBf16Step;
  run_bf16_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, activations, {m, 0, k, k, kSteps}, l2_steps,
      [](int) {
        cluster_sync();
        cluster_sync_reads();
      },
      [&](typename Gemm::Accumulator& sum, int thread) {
        HeadGateCluster<Gemm, kSplitK>::run(sum, m, split, g, rows, thread, shared, kBf16ConsumerBarrier);
      });
}

}  // namespace mktune
