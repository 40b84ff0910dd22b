// B1 and C0 as one launch over h: tiles of B1 first, whose CTAs go through more bytes, then those of C0.
//
// The parameters are those of the ops' own kernels, one list behind the other (indexer_k.cu, head_gate.cu), then an
// inverse for each TileGrid; what stands before the wait is what stands there in those kernels (gemm_frame.cuh,
// bf16_frame.cuh). `K` and `G` are the tilings of B1 and C0.
#include "ops/head_gate.cuh"
#include "ops/indexer_k.cuh"
#include "standalone/bf16_frame.cuh"
#include "standalone/shared_grid.cuh"

namespace mktune {

// Adds its own splits up: finalizer = last_arriver. `partials` and `counters` are used where split_k > 1.
template <class G, Gdc kGdc, Trigger kTrigger>
MKTUNE_DEVICE void run_gate_tile(u8* shared, const TensorMap& weights, const TensorMap& activations, float* partials,
                                 u32* counters, float* g, int rows, int l2_steps, const TilePlace& at) {
  using Gemm = Bf16Gemm<G::kMma, Major::kK, G::kBlockM, G::kBlockN, G::kStages, G::kWarps, HeadGate::kN>;
  constexpr int kSteps = HeadGate::kSteps / G::kSplitK;
  static_assert(kSteps * G::kSplitK == HeadGate::kSteps, "split_k must divide the steps of K");
  const int m = at.m_tile * G::kBlockM, k = at.split * kSteps * kBf16Step;
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kFlagAt);
  run_bf16_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, activations, {m, 0, k, k, kSteps}, l2_steps, [](int) {},
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (G::kSplitK > 1)
          HeadGateSplits<Gemm, G::kSplitK>::run(sum, m, at.split, partials, counters + at.m_tile, g, rows, thread, flag,
                                                kBf16ConsumerBarrier);
        else
          store_gate<Gemm>(sum, m, g, rows, thread);
      });
}

// B1 with finalizer = kernel: its first kernel, whose sums B1f finishes.
template <class K, class G, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kSharedThreads<K, G>, 1)
    indexer_k_head_gate(const __grid_constant__ TensorMap key_weights, const __grid_constant__ TensorMap codes,
                        const StoredScale* key_scales, const __grid_constant__ TensorMap code_scales, void* out, int key_rows,
                        int l2_groups, const __grid_constant__ TensorMap gate_weights,
                        const __grid_constant__ TensorMap hidden, float* partials, u32* tile_counters, float* g,
                        int rows, int l2_steps, u32 key_inverse, u32 inverse) {
  static_assert(K::kWarps == G::kWarps, "one launch has CTAs of one size");
  extern __shared__ __align__(1024) u8 shared[];
  const TileGrid<IndexerK, K> keys(key_rows, key_inverse);
  const int cta = blockIdx.x, first = keys.ctas();
  if (cta < first)
    run_producer_tile<IndexerK, K, kGdc, kTrigger>(shared, key_weights, codes, key_scales, code_scales, out, key_rows,
                                                   l2_groups, keys.place(cta));
  else
    run_gate_tile<G, kGdc, kTrigger>(shared, gate_weights, hidden, partials, tile_counters, g, rows, l2_steps,
                                     TileGrid<HeadGate, G>(rows, inverse).place(cta - first));
}

// B1 with finalizer = last_arriver.
template <class K, class G, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kSharedThreads<K, G>, 1)
    indexer_k_head_gate_last_arriver(
        const __grid_constant__ TensorMap key_weights, const __grid_constant__ TensorMap codes, const StoredScale* key_scales,
        const __grid_constant__ TensorMap code_scales, float* key_partials, Bf16* y, u32* key_counters,
        const float* ln_w, const float* ln_b, const float* cos, const float* sin, const i64* positions,
        const i64* slots, u8* index_k_cache, int key_rows, int l2_groups,
        const __grid_constant__ TensorMap gate_weights, const __grid_constant__ TensorMap hidden, float* partials,
        u32* tile_counters, float* g, int rows, int l2_steps, u32 key_inverse, u32 inverse) {
  static_assert(K::kWarps == G::kWarps, "one launch has CTAs of one size");
  using Finish = IndexerKFinish<Trigger::kExit>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileGrid<IndexerK, K> keys(key_rows, key_inverse);
  const int cta = blockIdx.x, first = keys.ctas();
  if (cta < first) {
    const IndexerKArgs args{ln_w, ln_b, cos, sin, positions, slots, index_k_cache, key_rows};
    run_head_tile<IndexerK, K, kGdc, kTrigger>(
        shared, key_weights, codes, key_scales, code_scales, {key_partials, y, key_counters}, key_rows, l2_groups,
        keys.place(cta), [&](int thread) { return Finish{args, Finish::load_norm_weights(args, thread % 32)}; });
  } else {
    run_gate_tile<G, kGdc, kTrigger>(shared, gate_weights, hidden, partials, tile_counters, g, rows, l2_steps,
                                     TileGrid<HeadGate, G>(rows, inverse).place(cta - first));
  }
}

}  // namespace mktune
