// Block-FP8 GEMMs of B0, B1, D0 and D1 with fewer CTAs than tiles: schedule = persistent and schedule = stream_k. The
// grid is the number of CTAs. Finalizer kernels are the ops' own, in their files. Before the wait: see
// persistent_gemm_frame.cuh.
#include "ops/indexer_k.cuh"
#include "ops/indexer_q.cuh"
#include "ops/main_q.cuh"
#include "ops/qkv_a.cuh"
#include "standalone/persistent_gemm_frame.cuh"
#include "standalone/tile_pieces.cuh"

namespace mktune {

// Adds the pieces of a tile up and writes them rounded to y.
template <class Op, class Gemm>
MKTUNE_DEVICE void add_to_y(const typename Gemm::Accumulator& sum, const TileCoordinates& part, int pieces,
                            float* partials, u32* tile_counters, Bf16* y, int rows, int thread, volatile u32* flag) {
  add_pieces<Op, Gemm>(
      sum, part, pieces, partials, tile_counters, rows, thread, flag, kPersistentConsumerBarrier,
      [&] { store_y<Op, Gemm>(sum, part, y, rows, thread); },
      [&](u64 at, const float4& total) {
        *reinterpret_cast<uint2*>(y + at) = {to_bf16x2(total.x, total.y), to_bf16x2(total.z, total.w)};
      });
}

// ---- persistent -----------------------------------------------------------------------------------------------------
// `out` as in gemm_producer: fp32 partials [split_k, rows, n], or bf16 y [rows, n] where split_k is 1.
template <class Op, Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc,
          Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    persistent_gemm(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                    const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales, void* out,
                    int rows, int l2_groups, int share, int longer, u64 m_tiles_inverse) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, Op::kGroups / kSplitK, Op::kSumParts>;
  extern __shared__ __align__(1024) u8 shared[];
  run_persistent_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales,
      parts_of_cta<Op, Gemm, kSplitK>(rows, {share, longer, m_tiles_inverse}), l2_groups,
      [&](typename Gemm::Accumulator& sum, const TileCoordinates& part, int thread) {
        if constexpr (kSplitK > 1)
          store_partials<Op, Gemm>(sum, part, static_cast<float*>(out), rows, thread);
        else
          store_y<Op, Gemm>(sum, part, static_cast<Bf16*>(out), rows, thread);
      });
}

// split_k > 1 of an op without a finalizer: the last split of a tile to arrive adds them up. See add_splits.
template <class Op, Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc,
          Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    persistent_gemm_splits(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                           const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                           float* partials, u32* tile_counters, Bf16* y, int rows, int l2_groups, int share,
                           int longer, u64 m_tiles_inverse) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, Op::kGroups / kSplitK, Op::kSumParts>;
  extern __shared__ __align__(1024) u8 shared[];
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_persistent_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales,
      parts_of_cta<Op, Gemm, kSplitK>(rows, {share, longer, m_tiles_inverse}), l2_groups,
      [&](typename Gemm::Accumulator& sum, const TileCoordinates& part, int thread) {
        add_to_y<Op, Gemm>(sum, part, kSplitK, partials, tile_counters, y, rows, thread, flag);
      });
}

// ---- stream_k -------------------------------------------------------------------------------------------------------
// For a finalizer kernel that adds `most` partial sums of each tile: partials [most, rows, n]. Tiles in fewer pieces
// get zeros for the others.
template <class Op, Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    stream_k_gemm(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                  const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales, float* partials,
                  int rows, int l2_groups, int share, int longer, u64 m_tiles_inverse, int most) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, Op::kGroups, Op::kSumParts>;
  extern __shared__ __align__(1024) u8 shared[];
  const auto schedule = share_of_cta<Op, Gemm>(rows, {share, longer, m_tiles_inverse});
  run_persistent_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, schedule, l2_groups,
      [&](typename Gemm::Accumulator& sum, TileCoordinates part, int thread) {
        store_partials<Op, Gemm>(sum, part, partials, rows, thread);
        if (part.split + 1 < schedule.pieces(part)) return;
        clear_sums(sum);
        while (++part.split < most) store_partials<Op, Gemm>(sum, part, partials, rows, thread);
      });
}

// For an op without a finalizer: see add_pieces. `partials` is [most pieces of a tile, rows, n].
template <class Op, Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    stream_k_gemm_pieces(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                         const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales,
                         float* partials, u32* tile_counters, Bf16* y, int rows, int l2_groups, int share, int longer,
                         u64 m_tiles_inverse) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, Op::kGroups, Op::kSumParts>;
  extern __shared__ __align__(1024) u8 shared[];
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  const auto schedule = share_of_cta<Op, Gemm>(rows, {share, longer, m_tiles_inverse});
  run_persistent_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, schedule, l2_groups,
      [&](typename Gemm::Accumulator& sum, const TileCoordinates& part, int thread) {
        add_to_y<Op, Gemm>(sum, part, schedule.pieces(part), partials, tile_counters, y, rows, thread, flag);
      });
}

}  // namespace mktune
