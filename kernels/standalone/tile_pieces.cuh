// What becomes of tiles whose K several CTAs share, where no finalizer kernel adds their sums up.
#pragma once
#include "ops/gemm_results.cuh"

namespace mktune {

// The last piece of a tile to arrive adds them up, in their order, so that the result does not depend on which one was
// last: write(at, total) gets four neighbours at `at` of [rows, n]. The only piece of a tile leaves no partial sums:
// whole() writes it. As add_splits, but for the number of pieces, which is the tile's own.
template <class Op, class Gemm, class Whole, class Write>
MKTUNE_DEVICE void add_pieces(const typename Gemm::Accumulator& sum, const TileCoordinates& part, int pieces,
                              float* partials, u32* tile_counters, int rows, int thread, volatile u32* flag,
                              int barrier, Whole whole, Write write) {
  if (pieces == 1) {
    whole();
    return;
  }
  store_partials<Op, Gemm>(sum, part, partials, rows, thread);
  u32* counter = tile_counters + part.m_tile * part.n_tiles + part.n_tile;
  const bool last = is_last_arrival<Gemm::kThreads>(counter, pieces, thread, flag, barrier);
  if (!__shfl_sync(0xffffffffu, last, 0)) return;

  constexpr int kColumns = Op::kN < Gemm::kBlockN ? Op::kN : Gemm::kBlockN;
  static_assert(Op::kN % kColumns == 0, "all columns of a tile exist");
  constexpr int kUnits = kColumns / 4, kAtOnce = 4;  // of four neighbours, in a row
  const int units = min(Gemm::kBlockM, rows - part.m) * kUnits;
  // All threads go round together: those beyond the last unit add that one up again.
  for (int first = 0; first < units; first += kAtOnce * Gemm::kThreads) {
    float4 total[kAtOnce] = {};
    u64 at[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = min(first + i * Gemm::kThreads + thread, units - 1);
      at[i] = static_cast<u64>(part.m + unit / kUnits) * Op::kN + part.n + unit % kUnits * 4;
    }
#pragma unroll 2
    for (int piece = 0; piece < pieces; ++piece) {
      const float* source = partials + static_cast<u64>(piece) * rows * Op::kN;
      uint4 raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) raw[i] = load_produced_16(source + at[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        total[i].x += __uint_as_float(raw[i].x);
        total[i].y += __uint_as_float(raw[i].y);
        total[i].z += __uint_as_float(raw[i].z);
        total[i].w += __uint_as_float(raw[i].w);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) write(at[i], total[i]);
  }
}

}  // namespace mktune
