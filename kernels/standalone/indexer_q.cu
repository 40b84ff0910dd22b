// D1 as kernels of its own: the GEMM (D1p, gemm_producer<IndexerQ, …>) and the finalizer (D1f), or both in one with
// finalizer = last_arriver or cluster.
//
// g is another producer's: read behind the wait of the kernel that finishes. Before the wait: see gemm_frame.cuh for
// the GEMM; positions (an argument that nothing in a graph writes) and the tables there for the finalizer with gdc =
// prologue.
#include "ops/indexer_q.cuh"
#include "standalone/gemm_frame.cuh"

namespace mktune {

// finalizer = last_arriver. See HeadWorkspace for what `partials`, `y` and `counters` hold, and when.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    indexer_q_last_arriver(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                           const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                           float* partials, Bf16* y, u32* counters, const float* cos, const float* sin, const float* g,
                           const i64* positions, u8* qi, float* w, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, IndexerQ::kGroups / kSplitK>;
  static_assert(StagedRows::kPitch * kBlockM <= Gemm::kBytes, "rows are staged in the ring");
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<IndexerQ, Gemm, kSplitK>();
  const IndexerQFinish<Trigger::kExit> finish{{cos, sin, g, positions, qi, w, rows}};
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_gemm_cta<IndexerQ, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        HeadLastArriver<IndexerQ, Gemm, kSplitK>::run(sum, tile, {partials, y, counters}, rows, thread, shared, flag,
                                                      kConsumerBarrier, finish);
      });
}

// finalizer = cluster.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    indexer_q_cluster(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                      const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                      const float* cos, const float* sin, const float* g, const i64* positions, u8* qi, float* w,
                      int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, IndexerQ::kGroups / kSplitK>;
  using Finish = IndexerQFinish<Trigger::kExit>;
  extern __shared__ __align__(1024) u8 shared[];
  const Finish finish{{cos, sin, g, positions, qi, w, rows}};
  run_head_cluster<IndexerQ, Gemm, kSplitK, kGdc, kTrigger>(shared, weights, weight_scales, activations,
                                                           activation_scales, rows, l2_groups,
                                                           [&](int) { return finish; });
}

// `in` is what gemm_producer wrote. A warp for each row's head.
template <int kThreads, int kSplitK, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads, 1)
    indexer_q_finalizer(const void* in, const float* cos, const float* sin, const float* g, const i64* positions,
                        u8* qi, float* w, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "the finalizer has no weights to prefetch");
  using Finish = IndexerQFinish<kTrigger>;
  const Finish finish{{cos, sin, g, positions, qi, w, rows}};
  const auto source = producer_rows<IndexerQ, kSplitK>(in, rows);
  const int unit = blockIdx.x * (kThreads / 32) + warp_index(), lane = threadIdx.x % 32;
  const int row = unit / IndexerQ::kHeads, head = unit % IndexerQ::kHeads;

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  typename Finish::template Places<1, kGdc == Gdc::kPrologue> places;
  if constexpr (kGdc == Gdc::kPrologue) {
    places = Finish::template load_places<1, true>(finish.args, row, 1, rows);
    Finish::load_factors(finish.args, lane, places);
  }
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) places = Finish::template load_places<1, false>(finish.args, row, 1, rows);

  if (row < rows) finish.run(source, places, row, 1, rows, head, lane);
  stamp_end();
}

}  // namespace mktune
