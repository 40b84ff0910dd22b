// How the indexer finishes 128 neighbouring columns of a GEMM, a head: what B1 and D1 have in common.
//
// A warp holds a head, four neighbours a lane. It may work on several tokens' heads at once, step by step over all of
// them, so that they hide each other's latencies.
#pragma once
#include "common/quant.cuh"
#include "common/rope.cuh"
#include "common/team.cuh"
#include "ops/gemm_results.cuh"

namespace mktune {

struct IndexHead {
  static constexpr int kDim = 128, kUnit = 4;
  static constexpr int kPairs = 32;  // that RoPE turns: the first 64 dims
  static constexpr int kRopeLanes = 2 * kPairs / kUnit;

  // Factors of this lane's four dims at each position.
  template <int kCount>
  static MKTUNE_DEVICE void load_factors(const float* cos, const float* sin, const i64 (&position)[kCount], int lane,
                                         RopeFactors (&factors)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      factors[i] = lane < kRopeLanes ? load_rope_factors<kPairs>(cos, sin, position[i], 2 * lane) : kNoRotation;
  }

  // RoPE, one rounding to bf16, and s = max(amax, 1e-4) / 448: this lane's four codes and the head's scale.
  template <int kCount>
  static MKTUNE_DEVICE void quantise(const float4 (&value)[kCount], const RopeFactors (&factors)[kCount],
                                     u32 (&codes)[kCount], float (&scales)[kCount]) {
    float4 rounded[kCount];
    float peak[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float4 v = rotated(value[i], factors[i]);
      rounded[i] = unpacked({to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)});
      peak[i] = fmaxf(fmaxf(fabsf(rounded[i].x), fabsf(rounded[i].y)), fmaxf(fabsf(rounded[i].z), fabsf(rounded[i].w)));
    }
    warp_maxima(peak);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const QuantScale scale = q128_scale(peak[i], 1e-4f);
      codes[i] = q128_x4(rounded[i].x, rounded[i].y, rounded[i].z, rounded[i].w, scale);
      scales[i] = scale.value;
    }
  }
};

// ---- finalizer = last_arriver ---------------------------------------------------------------------------------------
// Rows of one head as a tile left them in shared memory, 16 bytes apart so that eight tokens meet no bank twice.
struct StagedRows {
  static constexpr int kPitch = IndexHead::kDim * 2 + 16;

  const u8* staging;
  int m;  // first token

  using Raw = uint2;
  MKTUNE_DEVICE Raw load(int row, int n) const {
    return *reinterpret_cast<const uint2*>(staging + (row - m) * kPitch + n % IndexHead::kDim * 2);
  }
  static MKTUNE_DEVICE uint2 rounded(Raw raw) { return raw; }
};

struct HeadWorkspace {
  float* partials;    // split_k > 1: [split_k, rows, n]
  Bf16* y;            // split_k = 1 and tiles of 64: [rows, n]
  u32* counters;      // [m tiles, heads], unless a tile is a whole head of all K; they wrap to zero by themselves
};

// The last CTA of a head to arrive, be it of another split or of the head's other half, has `finish` run over the
// head's rows, each of its warps every so many rows. Run by all consumers of the tile; `flag` is one word of shared
// memory and `staging` block_m · StagedRows::kPitch bytes.
template <class Op, class Gemm, int kSplitK>
struct HeadLastArriver {
  static constexpr int kTiles = IndexHead::kDim / Gemm::kBlockN;  // of a head

  template <class Finish>
  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, const TileCoordinates& tile,
                                const HeadWorkspace& workspace, int rows, int thread, u8* staging, volatile u32* flag,
                                int barrier, const Finish& finish) {
    if constexpr (kSplitK == 1 && kTiles == 1) {
      named_barrier_sync(barrier, Gemm::kThreads);  // `staging` may be what others still multiply from
      Gemm::for_each_pair(sum, thread, [&](int row, int token, u32 pair) {
        *reinterpret_cast<u32*>(staging + token * StagedRows::kPitch + row * 2) = pair;
      });
      named_barrier_sync(barrier, Gemm::kThreads);
      finish_rows(StagedRows{staging, tile.m}, tile, rows, thread, finish);
    } else {
      const int head = tile.n / IndexHead::kDim;
      u32* counter = workspace.counters + tile.m_tile * (Op::kN / IndexHead::kDim) + head;
      if constexpr (kSplitK > 1)
        store_partials<Op, Gemm>(sum, tile, workspace.partials, rows, thread);
      else
        store_y<Op, Gemm>(sum, tile, workspace.y, rows, thread);
      if (!is_last_arrival<Gemm::kThreads>(counter, kSplitK * kTiles, thread, flag, barrier)) return;
      if constexpr (kSplitK > 1)
        finish_rows(PartialRows<Op, kSplitK>{workspace.partials, rows}, tile, rows, thread, finish);
      else
        finish_rows(Bf16Rows<Op>{workspace.y}, tile, rows, thread, finish);
    }
  }

 private:
  template <class Rows, class Finish>
  static MKTUNE_DEVICE void finish_rows(const Rows& source, const TileCoordinates& tile, int rows, int thread,
                                        const Finish& finish) {
    constexpr int kWarps = Gemm::kThreads / 32, kEach = (Gemm::kBlockM + kWarps - 1) / kWarps;
    constexpr int kAtOnce = kEach < kRowsAtOnce<kSplitK> ? kEach : kRowsAtOnce<kSplitK>;
    const int end = min(tile.m + Gemm::kBlockM, rows);
    for (int row = tile.m + thread / 32; row < end; row += kAtOnce * kWarps) {
      // The places' table entries hang on loads of their own: ask for places first.
      const auto places = Finish::template load_places<kAtOnce, false>(finish.args, row, kWarps, end);
      finish.run(source, places, row, kWarps, end, tile.n / IndexHead::kDim, thread % 32);
    }
  }
};

// ---- finalizer = cluster --------------------------------------------------------------------------------------------
// The CTAs of a head, every tile of every split, are one cluster. Each leaves its sums in its shared memory, then each
// finishes some of the rows. The CTA's other threads take part in the same two
// synchronisations as `run`.
template <class Gemm, int kSplitK>
struct HeadCluster {
  static constexpr int kTiles = IndexHead::kDim / Gemm::kBlockN, kCtas = kSplitK * kTiles;
  using Rows = ClusterRows<Gemm, kSplitK, kTiles>;
  static_assert(Rows::kBytes <= Gemm::kBytes, "sums are left in the ring");
  // Rows of a warp, and how many of them are under way at once.
  static constexpr int kWarps = kCtas * Gemm::kThreads / 32, kEach = (Gemm::kBlockM + kWarps - 1) / kWarps;
  static constexpr int kAtOnce = kEach < kRowsAtOnce<kSplitK> ? kEach : kRowsAtOnce<kSplitK>;
  static MKTUNE_DEVICE int first_row(const TileCoordinates& tile, int thread) {
    return tile.m + thread / 32 * kCtas + tile.split * kTiles + tile.n_tile % kTiles;
  }

  // Places hang on a load, and their table entries on it. Where a warp has one row, whose places fit its registers beside
  // the sums, it asks for them while the weights are on their way, and for the entries when the tile is summed.
  static constexpr bool kAhead = kEach == 1;
  template <class Finish>
  struct Ready {
    Finish finish;
    typename Finish::template Places<kAtOnce, kAhead> places;
  };

  template <class Finish>
  static MKTUNE_DEVICE Ready<Finish> prepare(const TileCoordinates& tile, int rows, int thread, const Finish& finish) {
    Ready<Finish> ready{finish};
    if constexpr (kAhead) {
      const int row = first_row(tile, thread), end = min(tile.m + Gemm::kBlockM, rows);
      ready.places = Finish::template load_places<1, true>(finish.args, row, kWarps, end);
    }
    return ready;
  }

  template <class Finish>
  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, const TileCoordinates& tile, int rows, int thread,
                                u8* staging, int barrier, Ready<Finish> ready) {
    const int end = min(tile.m + Gemm::kBlockM, rows), head = tile.n / IndexHead::kDim, lane = thread % 32;
    if constexpr (kAhead) Finish::load_factors(ready.finish.args, lane, ready.places);
    named_barrier_sync(barrier, Gemm::kThreads);  // `staging` may be what others still multiply from
    Rows::store(sum, staging, thread);
    cluster_sync();
    const Rows source{shared_address(staging), tile.m};
    for (int row = first_row(tile, thread); row < end; row += kAtOnce * kWarps) {
      if constexpr (!kAhead)
        ready.places = Finish::template load_places<kAtOnce, false>(ready.finish.args, row, kWarps, end);
      ready.finish.run(source, ready.places, row, kWarps, end, head, lane);
    }
    cluster_sync_reads();  // of this CTA's sums
  }
};

}  // namespace mktune
