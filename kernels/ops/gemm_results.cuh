// What becomes of a GEMM tile's sums: partial sums of one split, rows of y rounded to bf16, or rows that the last split
// to arrive adds up; and how whoever finishes a row reads it. `Op` is the op's GemmProblem, `Gemm` its BlockFp8Gemm.
#pragma once
#include "common/cluster.cuh"
#include "common/last_arriver.cuh"
#include "common/ptx.cuh"

namespace mktune {

template <int kN_, int kK_>
struct GemmProblem {
  static constexpr int kN = kN_, kK = kK_, kGroups = kK / 128;
  static constexpr int kSumParts = 1;  // see BlockFp8Gemm
};

struct TileCoordinates {
  int m, n;       // first token, first weight row
  int m_tile, n_tile, n_tiles;
  int split;
  int first_group, groups;
};

// ---- where a row comes from: four neighbouring elements of one row, rounded to bf16 and packed ----------------------
template <int kSplitK>
struct SplitSums {  // fp32, added in the order of the splits
  struct Raw {
    uint4 split[kSplitK];
  };
  static MKTUNE_DEVICE float4 added(const Raw& raw) {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < kSplitK; ++s) {
      sum.x += __uint_as_float(raw.split[s].x);
      sum.y += __uint_as_float(raw.split[s].y);
      sum.z += __uint_as_float(raw.split[s].z);
      sum.w += __uint_as_float(raw.split[s].w);
    }
    return sum;
  }
  static MKTUNE_DEVICE uint2 rounded(const Raw& raw) {
    const float4 sum = added(raw);
    return {to_bf16x2(sum.x, sum.y), to_bf16x2(sum.z, sum.w)};
  }
};

template <class Op, int kSplitK>
struct PartialRows : SplitSums<kSplitK> {  // in memory: [split_k, rows, n]
  using Raw = typename SplitSums<kSplitK>::Raw;

  const float* partials;
  int rows;

  MKTUNE_DEVICE PartialRows(const float* partials, int rows) : partials(partials), rows(rows) {}
  MKTUNE_DEVICE Raw load(int row, int n) const {
    Raw raw;
#pragma unroll
    for (int s = 0; s < kSplitK; ++s)
      raw.split[s] = load_produced_16(partials + (static_cast<u64>(s) * rows + row) * Op::kN + n);
    return raw;
  }
};

// In the shared memory of a cluster's CTAs, each of which has one split of one of the kTiles tiles of a row: fp32
// [block_m][block_n], padded so that eight columns of each of four tokens meet no bank twice.
template <class Gemm, int kSplitK, int kTiles, int kColumns = Gemm::kBlockN>
struct ClusterRows : SplitSums<kSplitK> {
  using Raw = typename SplitSums<kSplitK>::Raw;
  static constexpr int kPitch = kColumns * 4 + 16, kBytes = Gemm::kBlockM * kPitch;

  u32 sums;  // shared-memory address
  int m;     // first token

  MKTUNE_DEVICE ClusterRows(u32 sums, int m) : sums(sums), m(m) {}
  MKTUNE_DEVICE Raw load(int row, int n) const {
    Raw raw;
#pragma unroll
    for (int s = 0; s < kSplitK; ++s)
      raw.split[s] = load_of_cta_16(sums + (row - m) * kPitch + n % kColumns * 4, s * kTiles + n / kColumns % kTiles);
    return raw;
  }
  // This CTA's own. `target` is what `sums` is to loads; all consumers, when nobody reads there any more.
  static MKTUNE_DEVICE void store(const typename Gemm::Accumulator& sum, u8* target, int thread) {
    Gemm::for_each(sum, thread, [&](int row, int token, float value) {
      if (row < kColumns) *reinterpret_cast<float*>(target + token * kPitch + row * 4) = value;
    });
  }
};

template <class Op>
struct Bf16Rows {  // bf16 [rows, n]
  const Bf16* y;

  using Raw = uint2;
  MKTUNE_DEVICE Raw load(int row, int n) const { return load_produced_8(y + static_cast<u64>(row) * Op::kN + n); }
  static MKTUNE_DEVICE uint2 rounded(Raw raw) { return raw; }
};

// What the GEMM of an op with finalizer = kernel writes.
template <class Op, int kSplitK>
MKTUNE_DEVICE auto producer_rows(const void* in, int rows) {
  if constexpr (kSplitK > 1)
    return PartialRows<Op, kSplitK>{static_cast<const float*>(in), rows};
  else
    return Bf16Rows<Op>{static_cast<const Bf16*>(in)};
}

// Rows of four that a thread has under way at once.
template <int kSplitK>
constexpr int kRowsAtOnce = kSplitK <= 8 ? 4 : 2;

// ---- what a tile writes ---------------------------------------------------------------------------------------------
// Partial sums of one split; split_k > 1.
template <class Op, class Gemm>
MKTUNE_DEVICE void store_partials(const typename Gemm::Accumulator& sum, const TileCoordinates& tile, float* partials,
                                  int rows, int thread) {
  float* target = partials + static_cast<u64>(tile.split) * rows * Op::kN;
  Gemm::for_each(sum, thread, [&](int row, int token, float value) {
    const int m = tile.m + token, n = tile.n + row;
    if (m < rows && n < Op::kN) target[static_cast<u64>(m) * Op::kN + n] = value;
  });
}

// y rounded to bf16.
template <class Op, class Gemm>
MKTUNE_DEVICE void store_y(const typename Gemm::Accumulator& sum, const TileCoordinates& tile, Bf16* y, int rows,
                           int thread) {
  static_assert(Op::kN % 2 == 0, "weight rows are written in pairs");
  Gemm::for_each_pair(sum, thread, [&](int row, int token, u32 pair) {
    const int m = tile.m + token, n = tile.n + row;
    if (m < rows && n < Op::kN) *reinterpret_cast<u32*>(y + static_cast<u64>(m) * Op::kN + n) = pair;
  });
}

// split_k > 1: the last split of a tile to arrive adds the splits up, in their order, so that the result does not
// depend on which one was last, and writes them rounded to y. True in the CTA that did so. Run by all consumers of the
// tile; `flag` is one word of shared memory. The counters [m tiles, n tiles] wrap to zero by themselves.
template <class Op, class Gemm, int kSplitK>
MKTUNE_DEVICE bool add_splits(const typename Gemm::Accumulator& sum, const TileCoordinates& tile, float* partials,
                              u32* tile_counters, Bf16* y, int rows, int thread, volatile u32* flag, int barrier) {
  store_partials<Op, Gemm>(sum, tile, partials, rows, thread);
  u32* counter = tile_counters + tile.m_tile * tile.n_tiles + tile.n_tile;
  if (!is_last_arrival<Gemm::kThreads>(counter, kSplitK, thread, flag, barrier)) return false;

  constexpr int kUnits = Gemm::kBlockN / 4, kAtOnce = kRowsAtOnce<kSplitK>;  // of four neighbours, in a row
  using Rows = PartialRows<Op, kSplitK>;
  const Rows source{partials, rows};
  const int units = min(Gemm::kBlockM, rows - tile.m) * kUnits;
  for (int first = thread; first < units; first += kAtOnce * Gemm::kThreads) {
    typename Rows::Raw raw[kAtOnce];
    const auto row = [&](int i) { return tile.m + min(first + i * Gemm::kThreads, units - 1) / kUnits; };
    const auto column = [&](int i) { return tile.n + min(first + i * Gemm::kThreads, units - 1) % kUnits * 4; };
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (column(i) < Op::kN) raw[i] = source.load(row(i), column(i));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (column(i) < Op::kN)
        *reinterpret_cast<uint2*>(y + static_cast<u64>(row(i)) * Op::kN + column(i)) = Rows::rounded(raw[i]);
  }
  return true;
}

}  // namespace mktune
