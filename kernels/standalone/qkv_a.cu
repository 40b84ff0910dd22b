// B0 as kernels of its own: the GEMM (B0p) and the finalizer (B0f), or both in one with finalizer = last_arriver.
//
// The GEMM's grid is (m tiles, n tiles, splits), so CTAs that read the same weights start together. Before the wait:
// see gemm_frame.cuh for the GEMM; the norms' weights (constants) for the finalizer with gdc = prologue.
#include "ops/qkv_a.cuh"
#include "standalone/gemm_frame.cuh"

namespace mktune {

template <class Gemm, int kSplitK>
MKTUNE_DEVICE TileCoordinates tile_of_cta() {
  constexpr int kGroups = QkvA::kGroups / kSplitK;
  static_assert(kGroups * kSplitK == QkvA::kGroups, "split_k must divide the K groups");
  const int m_tile = blockIdx.x, n_tile = blockIdx.y, split = blockIdx.z;
  return {m_tile * Gemm::kBlockM, n_tile * Gemm::kBlockN, m_tile, n_tile, static_cast<int>(gridDim.y), split,
          split * kGroups, kGroups};
}

// finalizer = kernel. `out` is fp32 partials [split_k, rows, 2624], or bf16 y [rows, 2624] where split_k is 1.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    qkv_a_producer(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                   const float* weight_scales, const __grid_constant__ TensorMap activation_scales, void* out, int rows,
                   int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, QkvA::kGroups / kSplitK>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<Gemm, kSplitK>();
  run_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales + tile.n / 128 * QkvA::kGroups + tile.first_group, activations, activation_scales,
      {tile.m, tile.n, tile.first_group, tile.groups}, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (kSplitK > 1)
          store_partials<Gemm>(sum, tile, static_cast<float*>(out), rows, thread);
        else
          store_y<Gemm>(sum, tile, static_cast<Bf16*>(out), rows, thread);
      });
}

// finalizer = last_arriver. `partials` and `tile_counters` are used where split_k > 1.
template <Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    qkv_a_last_arriver(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                       const float* weight_scales, const __grid_constant__ TensorMap activation_scales, float* partials,
                       Bf16* y, u32* tile_counters, u32* row_counters, const Bf16* q_norm_w, const Bf16* kv_norm_w,
                       const float* cos, const float* sin, const i64* positions, const i64* slots, u8* q_lora_q,
                       float* q_lora_s, Bf16* mla_cache, int rows, int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, QkvA::kGroups / kSplitK>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<Gemm, kSplitK>();
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_gemm_cta<Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales + tile.n / 128 * QkvA::kGroups + tile.first_group, activations, activation_scales,
      {tile.m, tile.n, tile.first_group, tile.groups}, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        QkvALastArriver<Gemm, kSplitK>::run(
            sum, tile, {partials, y, tile_counters, row_counters},
            {q_norm_w, kv_norm_w, cos, sin, positions, slots, q_lora_q, q_lora_s, mla_cache, rows}, thread, flag,
            kConsumerBarrier);
      });
}

// `in` is what qkv_a_producer wrote. One CTA per row.
template <int kThreads, int kSplitK, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads)
    qkv_a_finalizer(const void* in, const Bf16* q_norm_w, const Bf16* kv_norm_w, const float* cos, const float* sin,
                    const i64* positions, const i64* slots, u8* q_lora_q, float* q_lora_s, Bf16* mla_cache, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "the finalizer has no weights to prefetch");
  using Body = QkvAFinalizer<kThreads>;
  __shared__ typename Team<kThreads>::Scratch scratch;
  const Team<kThreads> team{static_cast<int>(threadIdx.x), 1};
  const QkvAFinalizerArgs args{q_norm_w, kv_norm_w, cos, sin, positions, slots, q_lora_q, q_lora_s, mla_cache, rows};

  const int row = blockIdx.x;
  const auto source = [&] {
    if constexpr (kSplitK > 1)
      return PartialRows<kSplitK>{static_cast<const float*>(in), rows};
    else
      return Bf16Rows{static_cast<const Bf16*>(in)};
  }();

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  typename Body::NormWeights norm_weights;
  if constexpr (kGdc == Gdc::kPrologue) norm_weights = Body::load_norm_weights(args, team);
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) norm_weights = Body::load_norm_weights(args, team);

  Body::template run_row<kTrigger>(source, args, row, norm_weights, team, scratch);
  stamp_end();
}

}  // namespace mktune
