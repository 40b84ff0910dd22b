// One warpgroup's product of one K group, promoted, behind one interface for every architecture:
// sum[64 weight rows][kTokens] += token scale · weight scale · (weights [64][128] · activations [kTokens][128]ᵀ), both
// swizzled e4m3 tiles in shared memory, sum in the accumulator layout that wgmma.cuh states (mma.sync's m16n8 fragments
// are the same).
#pragma once
#include "common/ptx.cuh"
#include "common/wgmma.cuh"

namespace mktune {

enum class Mma { kWgmma, kMmaSync };

// Four 8 × 16-byte matrices; lane i names the row i % 8 of matrix i / 8.
MKTUNE_DEVICE uint4 load_matrices(u32 row_address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row_address)
               : "memory");
  return v;
}

MKTUNE_DEVICE void mma_sync_m16n8k32(float (&d)[4], uint4 a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Address of the 16-byte chunk `chunk` (0 … 7) of row `row` in a tile with the 128-byte swizzle.
MKTUNE_DEVICE u32 swizzled(u32 tile, int row, int chunk) { return tile + row * 128 + ((chunk ^ (row & 7)) << 4); }

template <Mma kMma, int kTokens>
struct WarpgroupMma {
  static_assert(kMma != Mma::kWgmma || MKTUNE_HAS_WGMMA, "impl wgmma exists on sm_90a only: choose mma_sync");
  static_assert(kTokens % 8 == 0, "tokens come in groups of 8");

  // Complete when it returns: the tiles and the scales (fp32 [kTokens], shared memory) may be overwritten.
  static MKTUNE_DEVICE void accumulate(float (&sum)[kTokens / 8][4], u32 weights, u32 activations, u32 scales,
                                       float weight_scale, int thread) {
    if constexpr (kMma == Mma::kWgmma)
      accumulate_wgmma(sum, weights, activations, scales, weight_scale, thread % 32);
    else
      accumulate_mma_sync(sum, weights, activations, scales, weight_scale, thread / 32, thread % 32);
  }

 private:
  static MKTUNE_DEVICE void accumulate_wgmma(float (&sum)[kTokens / 8][4], u32 weights, u32 activations, u32 scales,
                                             float weight_scale, int lane) {
#if MKTUNE_HAS_WGMMA
    const u64 a = wgmma_descriptor(weights), b = wgmma_descriptor(activations);
    float product[kTokens / 8][4];
    wgmma_hold(product);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_k32<kTokens>(product, a + 2 * k, b + 2 * k, k != 0);  // + 32 bytes, in units of 16
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(product);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) promote(sum[j], product[j], scales, weight_scale, j, lane);
#endif
  }

  static MKTUNE_DEVICE void accumulate_mma_sync(float (&sum)[kTokens / 8][4], u32 weights, u32 activations, u32 scales,
                                                float weight_scale, int warp, int lane) {
    // Weights of all 128 values of K: rows 0-7 and 8-15 of the warp's 16, bytes 0-15 and 16-31 of each 32.
    uint4 a[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) a[k] = load_matrices(swizzled(weights, warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const uint4 low = load_matrices(swizzled(activations, 8 * j + lane % 8, lane / 8));
      const uint4 high = load_matrices(swizzled(activations, 8 * j + lane % 8, 4 + lane / 8));
      float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_sync_m16n8k32(product, a[0], low.x, low.y);
      mma_sync_m16n8k32(product, a[1], low.z, low.w);
      mma_sync_m16n8k32(product, a[2], high.x, high.y);
      mma_sync_m16n8k32(product, a[3], high.z, high.w);
      promote(sum[j], product, scales, weight_scale, j, lane);
    }
  }

  // Tokens 8 * j … 8 * j + 7.
  static MKTUNE_DEVICE void promote(float (&sum)[4], const float (&product)[4], u32 scales, float weight_scale, int j,
                                    int lane) {
    float even, odd;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(even), "=f"(odd)
                 : "r"(scales + (8 * j + lane % 4 * 2) * 4)
                 : "memory");
    even *= weight_scale;
    odd *= weight_scale;
    sum[0] = fmaf(product[0], even, sum[0]);
    sum[1] = fmaf(product[1], odd, sum[1]);
    sum[2] = fmaf(product[2], even, sum[2]);
    sum[3] = fmaf(product[3], odd, sum[3]);
  }
};

}  // namespace mktune
