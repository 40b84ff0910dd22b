// One warpgroup's product of one K group: [64 weight rows][kTokens] = weights [64][128] · activations [kTokens][128]ᵀ,
// both swizzled e4m3 tiles in shared memory, fp32 in the accumulator layout that wgmma.cuh states (mma.sync's m16n8
// fragments are the same), by the tensor-core instructions of the architecture.
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

// Transposes an 8 × 8 matrix of 16-bit values that the warp holds: lane i has row i / 4, columns i % 4 * 2 and the next.
MKTUNE_DEVICE u32 transposed(u32 pair) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

// Address of the 16-byte chunk `chunk` (0 … 7) of row `row` in a tile with the 128-byte swizzle.
MKTUNE_DEVICE u32 swizzled(u32 tile, int row, int chunk) { return tile + row * 128 + ((chunk ^ (row & 7)) << 4); }

template <Mma kMma, int kTokens>
struct WarpgroupMma;

// Asynchronous: begin() some products, then end() each in the order begun.
template <int kTokens>
struct WarpgroupMma<Mma::kWgmma, kTokens> {
  static_assert(kTokens > 0 && MKTUNE_HAS_WGMMA, "impl wgmma exists on sm_90a only: choose mma_sync");
  static constexpr bool kAsync = true;
  using Product = float[kTokens / 8][4];

#if MKTUNE_HAS_WGMMA
  static MKTUNE_DEVICE void fence(Product& product) {
    wgmma_hold(product);
    wgmma_fence();
  }
  // Of the group's four steps of 32 values, kSteps from kFirst on.
  template <int kFirst = 0, int kSteps = 4>
  static MKTUNE_DEVICE void begin(Product& product, u32 weights, u32 activations) {
    const u64 a = wgmma_descriptor(weights), b = wgmma_descriptor(activations);
#pragma unroll
    for (int k = kFirst; k < kFirst + kSteps; ++k)  // + 32 bytes, in units of 16
      wgmma_k32<kTokens>(product, a + 2 * k, b + 2 * k, k != kFirst);
    wgmma_commit();
  }
  // `kYounger` products that were begun later may stay under way. Then the tiles of this one may be overwritten.
  template <int kYounger>
  static MKTUNE_DEVICE void end(Product& product) {
    wgmma_wait<kYounger>();
    wgmma_hold(product);
  }
#endif
};

// Synchronous: each group of 8 tokens is promoted as soon as it is multiplied.
template <int kTokens>
struct WarpgroupMma<Mma::kMmaSync, kTokens> {
  static constexpr bool kAsync = false;
  using Product = float[kTokens / 8][4];

  // `promote(j, product)` gets the product of tokens 8 * j … 8 * j + 7.
  template <class Promote>
  static MKTUNE_DEVICE void run(u32 weights, u32 activations, int thread, Promote promote) {
    const int warp = thread / 32, lane = thread % 32;
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
      promote(j, product);
    }
  }
};

}  // namespace mktune
