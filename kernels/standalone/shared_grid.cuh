// Two ops as one launch: a one-dimensional grid whose first CTAs are the tiles of one op and the rest those of the other.
//
// The ops share warps, shared memory (as much as the larger one needs) and where they wait and trigger, and nothing
// else: each tile runs the roles of its own op with its own config, and what stands before the wait is what stands there
// in the op's own kernel. A CTA has a tile of one op only, so that hardware barriers and shared memory are used as there.
#pragma once
#include "standalone/gemm_frame.cuh"

namespace mktune {

// The config of one of the ops.
template <Mma kMma_, int kBlockM_, int kBlockN_, int kSplitK_, int kStages_, int kWarps_>
struct Tiling {
  static constexpr Mma kMma = kMma_;
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kSplitK = kSplitK_, kStages = kStages_, kWarps = kWarps_;
};

template <class First, class Second>
constexpr int kSharedThreads = (First::kWarps + 2) * 32;

struct TilePlace {
  int m_tile, n_tile, split;
};

// The CTAs of one op, m tiles first, then n tiles, then splits: in the order of the op's own grid.
// NOTE: a division by what only the launch knows takes as long as a load, in every CTA and before its first copy. So the
// launch brings its inverse: 2^32 / row tiles, rounded up, which is exact for as many CTAs as a grid has.
template <class Op, class Tiling>
struct TileGrid {
  static constexpr int kColumnTiles = (Op::kN + Tiling::kBlockN - 1) / Tiling::kBlockN;

  int row_tiles;
  u32 inverse;

  MKTUNE_DEVICE constexpr TileGrid(int rows, u32 inverse)
      : row_tiles((rows + Tiling::kBlockM - 1) / Tiling::kBlockM), inverse(inverse) {}
  MKTUNE_DEVICE constexpr int ctas() const { return row_tiles * kColumnTiles * Tiling::kSplitK; }
  MKTUNE_DEVICE constexpr TilePlace place(int cta) const {
    const int column = row_tiles == 1 ? cta : static_cast<int>(static_cast<u64>(cta) * inverse >> 32);
    return {cta - column * row_tiles, column % kColumnTiles, column / kColumnTiles};
  }
};

// The block-FP8 tile there; `Gemm` is the op's BlockFp8Gemm.
template <class Op, class Gemm, class Tiling>
MKTUNE_DEVICE TileCoordinates tile_at(const TilePlace& at) {
  constexpr int kGroups = Op::kGroups / Tiling::kSplitK;
  static_assert(kGroups * Tiling::kSplitK == Op::kGroups, "split_k must divide the K groups");
  return {at.m_tile * Gemm::kBlockM, at.n_tile * Gemm::kBlockN, at.m_tile, at.n_tile,
          TileGrid<Op, Tiling>::kColumnTiles, at.split, at.split * kGroups, kGroups};
}

// A tile whose rows another kernel finishes, or nobody: `out` is as in gemm_producer.
template <class Op, class Tiling, Gdc kGdc, Trigger kTrigger>
MKTUNE_DEVICE void run_producer_tile(u8* shared, const TensorMap& weights, const TensorMap& activations,
                                     const StoredScale* weight_scales, const TensorMap& activation_scales, void* out, int rows,
                                     int l2_groups, const TilePlace& at) {
  using Gemm = BlockFp8Gemm<Tiling::kMma, Tiling::kBlockM, Tiling::kBlockN, Tiling::kStages, Tiling::kWarps,
                            Op::kGroups / Tiling::kSplitK, Op::kSumParts>;
  const TileCoordinates tile = tile_at<Op, Gemm, Tiling>(at);
  run_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (Tiling::kSplitK > 1)
          store_partials<Op, Gemm>(sum, tile, static_cast<float*>(out), rows, thread);
        else
          store_y<Op, Gemm>(sum, tile, static_cast<Bf16*>(out), rows, thread);
      });
}

// A tile of finalizer = last_arriver. `make_finish(thread)` is what finishes a head's rows.
template <class Op, class Tiling, Gdc kGdc, Trigger kTrigger, class MakeFinish>
MKTUNE_DEVICE void run_head_tile(u8* shared, const TensorMap& weights, const TensorMap& activations,
                                 const StoredScale* weight_scales, const TensorMap& activation_scales,
                                 const HeadWorkspace& workspace, int rows, int l2_groups, const TilePlace& at,
                                 MakeFinish make_finish) {
  using Gemm = BlockFp8Gemm<Tiling::kMma, Tiling::kBlockM, Tiling::kBlockN, Tiling::kStages, Tiling::kWarps,
                            Op::kGroups / Tiling::kSplitK, Op::kSumParts>;
  static_assert(StagedRows::kPitch * Tiling::kBlockM <= Gemm::kBytes, "rows are staged in the ring");
  const TileCoordinates tile = tile_at<Op, Gemm, Tiling>(at);
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kBytes);
  run_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        HeadLastArriver<Op, Gemm, Tiling::kSplitK>::run(sum, tile, workspace, rows, thread, shared, flag,
                                                        kConsumerBarrier, make_finish(thread));
      });
}

}  // namespace mktune
