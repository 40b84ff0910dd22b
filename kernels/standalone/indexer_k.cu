// B1 as kernels of its own: the GEMM (B1p, gemm_producer<IndexerK, …>) and the finalizer (B1f), or both in one with
// finalizer = last_arriver or cluster.
//
// Before the wait: see gemm_frame.cuh for the GEMM; for the finalizer with gdc = prologue the norm's weight and
// bias (constants), positions and slots (arguments that nothing in a graph writes), and the tables at those positions.
#include "ops/indexer_k.cuh"
#include "standalone/gemm_frame.cuh"

namespace mktune {

// finalizer = last_arriver. See HeadWorkspace for what `partials`, `y` and `counters` hold, and when.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    indexer_k_last_arriver(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                           const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                           float* partials, Bf16* y, u32* counters, const float* ln_w, const float* ln_b,
                           const float* cos, const float* sin, const i64* positions, const i64* slots,
                           u8* index_k_cache, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, IndexerK::kGroups / kSplitK, IndexerK::kSumParts>;
  using Finish = IndexerKFinish<Trigger::kExit>;
  static_assert(StagedRows::kPitch * kBlockM <= Gemm::kBytes, "rows are staged in the ring");
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<IndexerK, Gemm, kSplitK>();
  const IndexerKArgs args{ln_w, ln_b, cos, sin, positions, slots, index_k_cache, rows};
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_gemm_cta<IndexerK, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        HeadLastArriver<IndexerK, Gemm, kSplitK>::run(sum, tile, {partials, y, counters}, rows, thread, shared, flag,
                                                      kConsumerBarrier,
                                                      Finish{args, Finish::load_norm_weights(args, thread % 32)});
      });
}

// finalizer = cluster.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    indexer_k_cluster(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                      const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                      const float* ln_w, const float* ln_b, const float* cos, const float* sin, const i64* positions,
                      const i64* slots, u8* index_k_cache, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, IndexerK::kGroups / kSplitK, IndexerK::kSumParts>;
  using Finish = IndexerKFinish<Trigger::kExit>;
  extern __shared__ __align__(1024) u8 shared[];
  const IndexerKArgs args{ln_w, ln_b, cos, sin, positions, slots, index_k_cache, rows};
  run_head_cluster<IndexerK, Gemm, kSplitK, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, rows, l2_groups,
      [&](int thread) { return Finish{args, Finish::load_norm_weights(args, thread % 32)}; });
}

// `in` is what gemm_producer wrote. A warp for each row.
template <int kThreads, int kSplitK, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads, 1)
    indexer_k_finalizer(const void* in, const float* ln_w, const float* ln_b, const float* cos, const float* sin,
                        const i64* positions, const i64* slots, u8* index_k_cache, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "the finalizer has no weights to prefetch");
  using Finish = IndexerKFinish<kTrigger>;
  const IndexerKArgs args{ln_w, ln_b, cos, sin, positions, slots, index_k_cache, rows};
  const auto source = producer_rows<IndexerK, kSplitK>(in, rows);
  const int row = blockIdx.x * (kThreads / 32) + warp_index(), lane = threadIdx.x % 32;

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  typename Finish::NormWeights norm;
  typename Finish::template Places<1, kGdc == Gdc::kPrologue> places;
  if constexpr (kGdc == Gdc::kPrologue) {
    places = Finish::template load_places<1, true>(args, row, 1, rows);
    norm = Finish::load_norm_weights(args, lane);
    Finish::load_factors(args, lane, places);
  }
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) {
    places = Finish::template load_places<1, false>(args, row, 1, rows);
    norm = Finish::load_norm_weights(args, lane);
  }

  if (row < rows) Finish{args, norm}.run(source, places, row, 1, rows, 0, lane);
  stamp_end();
}

}  // namespace mktune
