// D2: for each head, q_abs = q_nope · W_UK (bf16), rounded to bf16 once, then RoPE of the head's last 64, as one row of
// 576.
#pragma once
#include "common/ptx.cuh"
#include "ops/bf16_gemm.cuh"

namespace mktune {

struct QAbsorb {
  static constexpr int kHeads = 64, kNope = 192, kRope = 64, kHead = kNope + kRope;
  static constexpr int kN = 512, kRow = kN + kRope, kSteps = kNope / kBf16Step;
};

// RoPE of one head for kTokens tokens first, first + step, … before `end`: `q` is [rows, 64, 256], `mla_q` [rows, 64,
// 576]. kThreads threads, which `rank` counts, take two interleaved pairs at a time.
template <int kTokens, int kThreads>
struct QAbsorbRope {
  static constexpr int kUnits = QAbsorb::kRope / 4;
  static constexpr int kRounds = (kTokens * kUnits + kThreads - 1) / kThreads;
  static constexpr int kBatch = kRounds < 4 ? kRounds : 4;  // whose loads are under way together

  const Bf16* q;
  const float* cos;  // [positions, 32], constant
  const float* sin;  // [positions, 32], constant
  const i64* positions;
  Bf16* mla_q;

  MKTUNE_DEVICE void run(int head, int first, int step, int end, int rank) const {
    for (int round = 0; round < kRounds; round += kBatch) {
      const int unit = rank % kUnits, token0 = first + (round * kThreads + rank) / kUnits * step;
      constexpr int kTokensApart = kThreads / kUnits;
      if (token0 >= end) return;
      i64 position[kBatch];
      uint2 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int token = min(token0 + i * kTokensApart * step, end - 1);
        position[i] = load_produced_i64(positions + token);
        v[i] = load_produced_8(q + row(token, head) * QAbsorb::kHead + QAbsorb::kNope + unit * 4);
      }
      float2 c[kBatch], s[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const i64 pair = position[i] * (QAbsorb::kRope / 2) + unit * 2;
        c[i] = two_floats(cos + pair);
        s[i] = two_floats(sin + pair);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int token = token0 + i * kTokensApart * step;
        if (token < end)
          reinterpret_cast<uint2*>(mla_q + row(token, head) * QAbsorb::kRow + QAbsorb::kN)[unit] = {
              rotated(v[i].x, c[i].x, s[i].x), rotated(v[i].y, c[i].y, s[i].y)};
      }
    }
  }

 private:
  static MKTUNE_DEVICE float2 two_floats(const float* table) {
    const uint2 bits = load_constant_8(table);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y)};
  }
  static MKTUNE_DEVICE u64 row(int token, int head) { return static_cast<u64>(token) * QAbsorb::kHeads + head; }
  // (even, odd) → (even · cos - odd · sin, even · sin + odd · cos), in fp32, rounded once.
  static MKTUNE_DEVICE u32 rotated(u32 pair, float cos, float sin) {
    const float even = bf16_low(pair), odd = bf16_high(pair);
    return to_bf16x2(even * cos - odd * sin, even * sin + odd * cos);
  }
};

// Writes a tile of q_abs. Each warp turns its own 16 columns round in `staging` (shared memory, kBlockM * kBlockN * 2
// bytes, free for all consumers), so that a token's 32 bytes leave as one sector. Fence before the copy engine writes
// there.
template <class Gemm>
struct QAbsorbStore {
  static constexpr int kWarpBytes = Gemm::kBlockM * 32;  // [tokens][16 columns] of one warp and one of its halves

  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, const typename Gemm::Tile& tile, Bf16* mla_q,
                                int head, int rows, u8* staging, int thread) {
    if (!Gemm::has_sums(thread)) return;
    const int warp = thread / 32, lane = thread % 32;
    const int column = tile.n + thread % 128 / 32 * 16;
#pragma unroll
    for (int half = 0; half < Gemm::kHalves; ++half) {
      u8* mine = staging + (warp * Gemm::kHalves + half) * kWarpBytes;
      const u32 base = shared_address(mine);
#pragma unroll
      for (int j = 0; j < Gemm::kTokenGroups; ++j) {
        const float(&d)[4] = sum[half][j];
        // Matrices: columns 0-7 and 8-15 of eight tokens; lane i (of 16) names token i % 8 of matrix i / 8.
        store_matrices_transposed(base + slot(8 * j + lane % 8, lane / 8 % 2), to_bf16x2(d[0], d[1]),
                                  to_bf16x2(d[2], d[3]));
      }
      __syncwarp();
      Bf16* target = mla_q + static_cast<u64>(head) * QAbsorb::kRow + column + Gemm::part(thread, half) * 64;
      for (int i = lane; i < min(Gemm::kBlockM, rows - tile.m) * 2; i += 32) {
        const u64 row = static_cast<u64>(tile.m + i / 2) * QAbsorb::kHeads * QAbsorb::kRow;
        *reinterpret_cast<uint4*>(target + row + i % 2 * 8) = *reinterpret_cast<uint4*>(mine + slot(i / 2, i % 2));
      }
    }
  }

 private:
  // Where a token's eight columns lie: every second group of four tokens swaps its two, which avoids bank conflicts.
  static MKTUNE_DEVICE u32 slot(int token, int eight) { return token * 32 + (eight ^ (token / 4 % 2)) * 16; }

  static MKTUNE_DEVICE void store_matrices_transposed(u32 row_address, u32 first, u32 second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address), "r"(first),
                 "r"(second)
                 : "memory");
  }
};

}  // namespace mktune
