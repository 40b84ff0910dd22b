// Which parts of which tiles a CTA computes one after the other, where there are fewer CTAs than tiles.
//
// A schedule puts the K groups of its CTA in a row. Each role walks along it by itself: from(place) is what is left of
// the part that the group at `place` belongs to, and adding its `groups` leads to the next part. `place` counts items
// of the ring as well (see RingCursor), so a ring goes on from part to part.
//
// A K group is what a stage of the ring holds: 128 values of e4m3, or a step of 64 in bf16.
//
// The host divides: see mktune/ops/gemm_schedules.py. Tiles go m first, so that those that read the same weights meet.
#pragma once
#include "ops/gemm_results.cuh"

namespace mktune {

// What of a schedule depends on the number of rows and of CTAs.
struct Shares {
  int share, longer;   // what each CTA has, and the first `longer` ones one more
  u64 m_tiles_inverse;  // 2^32 / m tiles, rounded up: a product's high half is a quotient, for any number of tiles here

  constexpr MKTUNE_DEVICE int of(int cta) const { return share + (cta < longer ? 1 : 0); }
  // A number of m tiles, and those of the last column.
  constexpr MKTUNE_DEVICE int column(int tile) const {
    return static_cast<int>(static_cast<u64>(tile) * m_tiles_inverse >> 32);
  }
};

// Calls visit(place, part, groups) for each part, or what is left of it, at the places `place` to `end` of a schedule.
template <class Schedule, class Visit>
MKTUNE_DEVICE void for_each_part(const Schedule& schedule, int place, int end, Visit visit) {
  while (place < end) {
    const TileCoordinates part = schedule.from(place);
    const int groups = min(part.groups, end - place);
    visit(place, part, groups);
    place += groups;
  }
}

// schedule = persistent: parts are a tile × a split of K, in the order in which a grid of a CTA for each would start
// them. A CTA has every `ctas`-th.
template <class Op, class Gemm, int kSplitK>
struct EveryNthPart {
  static constexpr int kGroups = Op::kGroups / kSplitK;  // of a part
  static_assert(kGroups * kSplitK == Op::kGroups, "split_k must divide the K groups");
  static constexpr int kTiles = (Op::kN + Gemm::kBlockN - 1) / Gemm::kBlockN;

  int cta, ctas, m_tiles;
  Shares shares;  // of parts

  constexpr MKTUNE_DEVICE int groups() const { return shares.of(cta) * kGroups; }
  constexpr MKTUNE_DEVICE TileCoordinates from(int place) const {
    const int part = cta + place / kGroups * ctas, done = place % kGroups;
    const int column = shares.column(part), m_tile = part - column * m_tiles;
    const int n_tile = column % kTiles, split = column / kTiles;
    return {m_tile * Gemm::kBlockM, n_tile * Gemm::kBlockN, m_tile, n_tile, kTiles, split, split * kGroups + done,
            kGroups - done};
  }
};

template <class Op, class Gemm, int kSplitK>
MKTUNE_DEVICE EveryNthPart<Op, Gemm, kSplitK> parts_of_cta(int rows, const Shares& shares) {
  return {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), (rows + Gemm::kBlockM - 1) / Gemm::kBlockM,
          shares};
}

// schedule = stream_k: the K groups of all tiles in one line, of which each CTA has an even share. So a tile is in
// pieces, one for each CTA that has some of it; `split` numbers them.
template <class Op, class Gemm>
struct ShareOfLine {
  static constexpr int kGroups = Op::kGroups;  // of a tile
  static constexpr int kTiles = (Op::kN + Gemm::kBlockN - 1) / Gemm::kBlockN;

  int cta, m_tiles;
  Shares shares;  // of K groups

  constexpr MKTUNE_DEVICE int groups() const { return shares.of(cta); }
  constexpr MKTUNE_DEVICE TileCoordinates from(int place) const {
    const int at = cta * shares.share + (cta < shares.longer ? cta : shares.longer) + place;
    const int tile = at / kGroups, done = at % kGroups, n_tile = shares.column(tile), m_tile = tile - n_tile * m_tiles;
    const int in_tile = kGroups - done, in_share = groups() - place;
    return {m_tile * Gemm::kBlockM, n_tile * Gemm::kBlockN, m_tile, n_tile, kTiles, cta - owner(tile * kGroups), done,
            in_tile < in_share ? in_tile : in_share};
  }
  constexpr MKTUNE_DEVICE int pieces(const TileCoordinates& tile) const {
    const int first = (tile.n_tile * m_tiles + tile.m_tile) * kGroups;
    return owner(first + kGroups - 1) - owner(first) + 1;
  }

 private:
  // The CTA that has the K group `at` of the line.
  constexpr MKTUNE_DEVICE int owner(int at) const {
    const int in_longer = shares.longer * (shares.share + 1);
    return at < in_longer ? at / (shares.share + 1) : shares.longer + (at - in_longer) / shares.share;
  }
};

template <class Op, class Gemm>
MKTUNE_DEVICE ShareOfLine<Op, Gemm> share_of_cta(int rows, const Shares& shares) {
  return {static_cast<int>(blockIdx.x), (rows + Gemm::kBlockM - 1) / Gemm::kBlockM, shares};
}

}  // namespace mktune
