// D0 and D1 as one launch over q_lora: tiles of D0 first, whose CTAs go through more bytes, then those of D1.
//
// The parameters are those of the ops' own kernels, one list behind the other (main_q.cu, indexer_q.cu), then an inverse
// for each TileGrid; what stands before the wait is what stands there in those kernels (gemm_frame.cuh). `Q` and `I` are
// the tilings of D0 and D1. D0 has `query_partials` and `query_counters` where its split_k > 1.
#include "ops/indexer_q.cuh"
#include "ops/main_q.cuh"
#include "standalone/shared_grid.cuh"

namespace mktune {

template <class Q, Gdc kGdc, Trigger kTrigger>
MKTUNE_DEVICE void run_query_tile(u8* shared, const TensorMap& weights, const TensorMap& activations,
                                  const StoredScale* weight_scales, const TensorMap& activation_scales, float* partials,
                                  u32* counters, Bf16* q, int rows, int l2_groups, const TilePlace& at) {
  if constexpr (Q::kSplitK == 1) {
    run_producer_tile<MainQ, Q, kGdc, kTrigger>(shared, weights, activations, weight_scales, activation_scales, q, rows,
                                                l2_groups, at);
  } else {
    using Gemm =
        BlockFp8Gemm<Q::kMma, Q::kBlockM, Q::kBlockN, Q::kStages, Q::kWarps, MainQ::kGroups / Q::kSplitK>;
    const TileCoordinates tile = tile_at<MainQ, Gemm, Q>(at);
    volatile u32* flag = reinterpret_cast<u32*>(shared);  // in the ring, which nobody reads any more by then
    run_gemm_cta<MainQ, Gemm, kGdc, kTrigger>(
        shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
        [&](typename Gemm::Accumulator& sum, int thread) {
          add_splits<MainQ, Gemm, Q::kSplitK>(sum, tile, partials, counters, q, rows, thread, flag, kConsumerBarrier);
        });
  }
}

// D1 with finalizer = kernel: its first kernel, whose sums D1f finishes.
template <class Q, class I, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kSharedThreads<Q, I>, 1)
    main_q_indexer_q(const __grid_constant__ TensorMap query_weights, const __grid_constant__ TensorMap query_codes,
                     const StoredScale* query_scales, const __grid_constant__ TensorMap query_code_scales,
                     float* query_partials, u32* query_counters, Bf16* q, int query_rows, int query_l2_groups,
                     const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap codes,
                     const StoredScale* weight_scales, const __grid_constant__ TensorMap code_scales, void* out, int rows,
                     int l2_groups, u32 query_inverse, u32 inverse) {
  static_assert(Q::kWarps == I::kWarps, "one launch has CTAs of one size");
  extern __shared__ __align__(1024) u8 shared[];
  const TileGrid<MainQ, Q> queries(query_rows, query_inverse);
  const int cta = blockIdx.x, first = queries.ctas();
  if (cta < first)
    run_query_tile<Q, kGdc, kTrigger>(shared, query_weights, query_codes, query_scales, query_code_scales,
                                      query_partials, query_counters, q, query_rows, query_l2_groups,
                                      queries.place(cta));
  else
    run_producer_tile<IndexerQ, I, kGdc, kTrigger>(shared, weights, codes, weight_scales, code_scales, out, rows,
                                                   l2_groups, TileGrid<IndexerQ, I>(rows, inverse).place(cta - first));
}

// D1 with finalizer = last_arriver.
template <class Q, class I, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kSharedThreads<Q, I>, 1)
    main_q_indexer_q_last_arriver(
        const __grid_constant__ TensorMap query_weights, const __grid_constant__ TensorMap query_codes,
        const StoredScale* query_scales, const __grid_constant__ TensorMap query_code_scales, float* query_partials,
        u32* query_counters, Bf16* q, int query_rows, int query_l2_groups, const __grid_constant__ TensorMap weights,
        const __grid_constant__ TensorMap codes, const StoredScale* weight_scales,
        const __grid_constant__ TensorMap code_scales, float* partials, Bf16* y, u32* counters, const float* cos,
        const float* sin, const float* g, const i64* positions, u8* qi, float* w, int rows, int l2_groups,
        u32 query_inverse, u32 inverse) {
  static_assert(Q::kWarps == I::kWarps, "one launch has CTAs of one size");
  extern __shared__ __align__(1024) u8 shared[];
  const TileGrid<MainQ, Q> queries(query_rows, query_inverse);
  const int cta = blockIdx.x, first = queries.ctas();
  if (cta < first) {
    run_query_tile<Q, kGdc, kTrigger>(shared, query_weights, query_codes, query_scales, query_code_scales,
                                      query_partials, query_counters, q, query_rows, query_l2_groups,
                                      queries.place(cta));
  } else {
    const IndexerQFinish<Trigger::kExit> finish{{cos, sin, g, positions, qi, w, rows}};
    run_head_tile<IndexerQ, I, kGdc, kTrigger>(shared, weights, codes, weight_scales, code_scales,
                                               {partials, y, counters}, rows, l2_groups,
                                               TileGrid<IndexerQ, I>(rows, inverse).place(cta - first),
                                               [&](int) { return finish; });
  }
}

}  // namespace mktune
