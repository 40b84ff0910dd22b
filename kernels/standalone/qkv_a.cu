// B0 as kernels of its own: the GEMM (B0p) and the finalizer (B0f), or both in one with finalizer = last_arriver.
//
// With finalizer = kernel the GEMM is gemm_producer<QkvA, …>. Before the wait: see gemm_frame.cuh for the GEMM; the
// norms' weights (constants), positions and slots (arguments that nothing in a graph writes), and the tables at those
// positions for the finalizer with gdc = prologue.
#include "ops/qkv_a.cuh"
#include "standalone/gemm_frame.cuh"

namespace mktune {

// finalizer = last_arriver. `partials` and `tile_counters` are used where split_k > 1.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    qkv_a_last_arriver(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                       const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales, float* partials,
                       Bf16* y, u32* tile_counters, u32* row_counters, const Bf16* q_norm_w, const Bf16* kv_norm_w,
                       const float* cos, const float* sin, const i64* positions, const i64* slots, u8* q_lora_q,
                       StoredScale* q_lora_s, Bf16* mla_cache, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, QkvA::kGroups / kSplitK>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<QkvA, Gemm, kSplitK>();
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_gemm_cta<QkvA, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        QkvALastArriver<Gemm, kSplitK>::run(
            sum, tile, {partials, y, tile_counters, row_counters},
            {q_norm_w, kv_norm_w, cos, sin, positions, slots, q_lora_q, q_lora_s, mla_cache, rows}, thread, flag,
            kConsumerBarrier);
      });
}

// `in` is what gemm_producer wrote. One CTA per row.
template <int kThreads, int kSplitK, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads, 1)
    qkv_a_finalizer(const void* in, const Bf16* q_norm_w, const Bf16* kv_norm_w, const float* cos, const float* sin,
                    const i64* positions, const i64* slots, u8* q_lora_q, StoredScale* q_lora_s, Bf16* mla_cache, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "the finalizer has no weights to prefetch");
  using Body = QkvAFinalizer<kThreads>;
  __shared__ typename Team<kThreads>::Scratch scratch;
  const Team<kThreads> team{static_cast<int>(threadIdx.x), 1};
  const QkvAFinalizerArgs args{q_norm_w, kv_norm_w, cos, sin, positions, slots, q_lora_q, q_lora_s, mla_cache, rows};

  const int row = blockIdx.x;
  const auto source = producer_rows<QkvA, kSplitK>(in, rows);

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  typename Body::NormWeights norm_weights;
  typename Body::template Place<kGdc == Gdc::kPrologue> place;
  if constexpr (kGdc == Gdc::kPrologue) {
    place = Body::template load_place<true>(args, row, team);
    norm_weights = Body::load_norm_weights(args, team);
  }
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) {
    place = Body::template load_place<false>(args, row, team);
    norm_weights = Body::load_norm_weights(args, team);
  }

  Body::template run_row<kTrigger>(source, args, row, place, norm_weights, team, scratch);
  stamp_end();
}

}  // namespace mktune
