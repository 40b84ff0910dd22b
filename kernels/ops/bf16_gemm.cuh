// bf16 GEMM: y[m, n] = Σ_k a[m, k] · w[n, k], one tile of block_m tokens × block_n columns over some steps of 64 values
// of K, as roles that the caller gives threads, a ring and coordinates.
//
// Weights are the 64-row operand and tokens the narrow one, so that few tokens waste little of the tensor cores. Sums
// stay in fp32 registers. Weights may lie in memory as [n][k] (Major::kK) or as [k][n] (Major::kN).
//
//   load_weights      one thread; touches constants only, so it may run before the wait
//   load_activations  one thread; behind the wait
//   consume           4 or 8 whole warps; sees activations through the ring's barriers, so it stands behind the wait of
//                     the thread that loads them
#pragma once
#include "common/hand_back.cuh"
#include "common/mma.cuh"
#include "common/ptx.cuh"
#include "common/warpgroup_sums.cuh"
#include "common/wgmma_bf16.cuh"

namespace mktune {

constexpr int kBf16Step = 64;  // values of K in a stage: 128 bytes, one swizzle atom

// A stage holds weights [block_n][64] or [block_n / 64][64][64], and activations [block_m][64], with a barrier each,
// since weights may arrive long before the activations. Roles count steps since the ring was initialised, and run on
// over tiles.
template <int kBlockM, int kBlockN, int kStages, int kWarps, int kColumns>
struct Bf16Ring {
  static constexpr int kStageCount = kStages;
  static constexpr int kWeightBytes = kBlockN * kBf16Step * 2;
  static constexpr int kLoadedBytes = kColumns * kBf16Step * 2;  // of them
  static constexpr int kActivationBytes = kBlockM * kBf16Step * 2;
  static constexpr int kActivationsAt = kStages * kWeightBytes;
  static constexpr int kBarriersAt = kActivationsAt + kStages * kActivationBytes;
  static constexpr int kBytes = kBarriersAt + 3 * 8 * kStages;

  u32 base;  // shared-memory address, a multiple of 1024: the swizzle repeats after that many bytes

  static MKTUNE_DEVICE int stage(u32 step) { return step % kStages; }
  static MKTUNE_DEVICE u32 phase(u32 step) { return step / kStages & 1; }
  MKTUNE_DEVICE u32 weights(int stage) const { return base + stage * kWeightBytes; }
  MKTUNE_DEVICE u32 activations(int stage) const { return base + kActivationsAt + stage * kActivationBytes; }
  MKTUNE_DEVICE u32 weights_full(int stage) const { return base + kBarriersAt + 8 * stage; }
  MKTUNE_DEVICE u32 activations_full(int stage) const { return base + kBarriersAt + 8 * (kStages + stage); }
  MKTUNE_DEVICE u32 empty(int stage) const { return base + kBarriersAt + 8 * (2 * kStages + stage); }

  // One thread each, which may use its barriers at once, others behind a CTA barrier.
  MKTUNE_DEVICE void init_weights() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(weights_full(stage), 1);
    fence_mbarrier_init();
  }
  MKTUNE_DEVICE void init_activations_and_empty() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(activations_full(stage), 1);
      mbarrier_init(empty(stage), kWarps);
    }
    fence_mbarrier_init();
  }
};

MKTUNE_DEVICE void mma_sync_m16n8k16(float (&d)[4], uint4 a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// load_matrices, each matrix transposed.
MKTUNE_DEVICE uint4 load_matrices_transposed(u32 row_address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row_address)
               : "memory");
  return v;
}

// kColumns: those of the tile that exist. Where K is contiguous the others are not loaded; their sums mean nothing.
template <Mma kMma, Major kMajor, int kBlockM_, int kBlockN_, int kStages, int kWarps, int kColumns = kBlockN_>
struct Bf16Gemm {
  static_assert(kColumns == kBlockN_ || kMajor == Major::kK, "columns that lie together are loaded together");
  static_assert(kMma != Mma::kWgmma || MKTUNE_HAS_WGMMA, "impl wgmma exists on sm_90a only: choose mma_sync");
  static_assert(kWarps == 4 || kWarps == 8, "one or two warpgroups");
  static_assert(kBlockN_ == 64 || kBlockN_ == 128, "block_n is 64 or 128");
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr int kThreads = kWarps * 32;  // of consume
  static constexpr int kWarpgroups = kWarps / 4;
  // Two warpgroups share a tile of 128 columns by columns, and one of 64 by halves of each step.
  static constexpr bool kSplitsSteps = kWarpgroups == 2 && kBlockN == 64;
  static constexpr int kHalves = kBlockN / 64 / (kSplitsSteps ? 1 : kWarpgroups);  // 64-column parts of one warpgroup
  static constexpr int kTokenGroups = kBlockM / 8;
  static constexpr int kSlices = kSplitsSteps ? 2 : 4;  // of 16 values of K, of a step, that a warpgroup multiplies
  using Ring = Bf16Ring<kBlockM, kBlockN, kStages, kWarps, kColumns>;
  using Accumulator = float[kHalves][kTokenGroups][4];

  // Shared memory: the ring, a word for the caller, then where the second warpgroup hands its sums to the first.
  static constexpr int kFlagAt = Ring::kBytes;
  static constexpr int kExchangeAt = (kFlagAt + 16 + 127) / 128 * 128;
  static constexpr int kBytes = kExchangeAt + (kSplitsSteps ? kBlockM * kBlockN * 4 : 0);

  // Weights under way at once, in stages. Few, since two CTAs share an SM and what others read or write meanwhile queues
  // behind them: a chain of kernels gains more by that than this one loses.
  static constexpr int kWindow = 32 * 1024 / Ring::kLoadedBytes;

  struct Tile {
    int m, n;             // first token, first column of the weights' map
    int k, activation_k;  // first value of K in the weights' map and in the activations'
    int steps;
  };

  // ---- loaders: steps `from` … `to` - 1 of the tile, whose step 0 is step `item` of the ring ------------------------
  static MKTUNE_DEVICE void load_weights(Ring ring, u32 item, const TensorMap& weights, const Tile& tile, int from,
                                         int to) {
    for (int i = from; i < to; ++i) {
      const int stage = wait_empty(ring, item + i);
      if (kWindow < kStages && item + i >= kWindow) {
        const u32 before = item + i - kWindow;
        mbarrier_wait(ring.weights_full(Ring::stage(before)), Ring::phase(before));
      }
      mbarrier_expect(ring.weights_full(stage), Ring::kLoadedBytes);
      for_each_box(tile, i, [&](int x, int y, int part) {
        copy_weights(ring.weights(stage) + part * kPartBytes, weights, x, y, ring.weights_full(stage));
      });
    }
  }

  static MKTUNE_DEVICE void prefetch_weights_to_l2(const TensorMap& weights, const Tile& tile, int from, int to) {
    for (int i = from; i < to; ++i)
      for_each_box(tile, i, [&](int x, int y, int) { prefetch_tensor_to_l2(weights, x, y); });
  }

  // Tokens beyond the last arrive as zeros.
  static MKTUNE_DEVICE void load_activations(Ring ring, u32 item, const TensorMap& activations, const Tile& tile) {
    for (int i = 0; i < tile.steps; ++i) {
      const int stage = wait_empty(ring, item + i);
      mbarrier_expect(ring.activations_full(stage), Ring::kActivationBytes);
      copy_tensor(ring.activations(stage), activations, tile.activation_k + i * kBf16Step, tile.m,
                  ring.activations_full(stage));
    }
  }

  // ---- consumers ---------------------------------------------------------------------------------------------------
  // Sums the tile. With two warpgroups that split the steps, the first one's threads hold the result; else each
  // warpgroup holds its own columns. `thread` counts the consumers from 0. `exchange` is shared memory; the caller
  // syncs the consumers before it is used again for the next tile.
  static MKTUNE_DEVICE void consume(Ring ring, u32 item, const Tile& tile, Accumulator& sum, int thread,
                                    float* exchange, int barrier) {
    const int warpgroup = kWarpgroups == 1 ? 0 : __shfl_sync(0xffffffffu, thread / 128, 0);  // uniform for the compiler
    clear_sums(sum);

    const int first_part = kSplitsSteps ? 0 : warpgroup * kHalves;
    const int first_slice = kSplitsSteps ? warpgroup * kSlices : 0;
    if constexpr (kMma == Mma::kWgmma)
      consume_wgmma(ring, item, tile.steps, sum, first_part, first_slice, thread);
    else
      consume_mma_sync(ring, item, tile.steps, sum, first_part, first_slice, thread);
    if constexpr (kSplitsSteps) add_second_warpgroup(sum[0], thread, exchange, barrier);
  }

  // Whether `thread` holds sums, and the first of its 64 columns' parts.
  static MKTUNE_DEVICE bool has_sums(int thread) { return !kSplitsSteps || thread < 128; }
  static MKTUNE_DEVICE int part(int thread, int half) { return (kSplitsSteps ? 0 : thread / 128 * kHalves) + half; }

  // Calls visit(column, token, value) for each element this thread holds: column 0 … block_n - 1, token 0 … block_m -
  // 1. In one call of a warp, eight neighbouring columns go to each of four tokens.
  template <class Visit>
  static MKTUNE_DEVICE void for_each(const Accumulator& sum, int thread, Visit visit) {
    if (!has_sums(thread)) return;
    const int lane = thread % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          visit(part(thread, half) * 64 + thread % 128 / 32 * 16 + lane / 4 + e / 2 * 8, 8 * j + lane % 4 * 2 + e % 2,
                sum[half][j][e]);
  }

 private:
  static constexpr int kPartBytes = 64 * kBf16Step * 2;  // 64 columns of a step, whichever way they lie

  // The boxes of the weights' map that make up step i: one where K is contiguous, else one for each 64 columns.
  template <class Visit>
  static MKTUNE_DEVICE void for_each_box(const Tile& tile, int i, Visit visit) {
    const int k = tile.k + i * kBf16Step;
    if constexpr (kMajor == Major::kK) {
      visit(k, tile.n, 0);
    } else {
#pragma unroll
      for (int part = 0; part < kBlockN / 64; ++part) visit(tile.n + 64 * part, k, part);
    }
  }

  // The stage of a step, free to be filled. The first round finds an empty ring, whose barriers may just have been set
  // up.
  static MKTUNE_DEVICE int wait_empty(Ring ring, u32 step) {
    const int stage = Ring::stage(step);
    if (step >= kStages) mbarrier_wait(ring.empty(stage), Ring::phase(step) ^ 1);
    return stage;
  }
  static MKTUNE_DEVICE int wait_full(Ring ring, u32 step) {
    const int stage = Ring::stage(step);
    mbarrier_wait(ring.weights_full(stage), Ring::phase(step));
    mbarrier_wait(ring.activations_full(stage), Ring::phase(step));
    return stage;
  }
  template <ReadBy kReadBy>
  static MKTUNE_DEVICE void release(Ring ring, u32 step, int thread) {
    hand_back<kReadBy>(ring.empty(Ring::stage(step)), thread);
  }

  // One step's products are under way while the next one's are begun.
  static MKTUNE_DEVICE void consume_wgmma(Ring ring, u32 item, int steps, Accumulator& sum, int first_part,
                                          int first_slice, int thread) {
#if MKTUNE_HAS_WGMMA
    // From one slice to the next: 32 bytes of each row, or 16 rows of 128 bytes; in units of 16 bytes.
    constexpr int kSliceStep = kMajor == Major::kK ? 2 : 128;
    for (int i = 0; i < steps; ++i) {
      const int stage = wait_full(ring, item + i);
      const u64 b = wgmma_descriptor(ring.activations(stage)) + 2 * first_slice;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) wgmma_hold(sum[h]);
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const u64 a = wgmma_descriptor(ring.weights(stage) + (first_part + h) * kPartBytes) + kSliceStep * first_slice;
#pragma unroll
        for (int k = 0; k < kSlices; ++k) wgmma_k16<kBlockM, kMajor>(sum[h], a + kSliceStep * k, b + 2 * k);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) release<ReadBy::kTensorCores>(ring, item + i - 1, thread);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < kHalves; ++h) wgmma_hold(sum[h]);
    release<ReadBy::kTensorCores>(ring, item + steps - 1, thread);
#endif
  }

  static MKTUNE_DEVICE void consume_mma_sync(Ring ring, u32 item, int steps, Accumulator& sum, int first_part,
                                             int first_slice, int thread) {
    constexpr int kPairsAtOnce = kHalves * kTokenGroups < 16 ? 2 : 1;  // of slices; a large tile would spill
    const int warp = thread % 128 / 32, lane = thread % 32;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int stage = wait_full(ring, item + i);
#pragma unroll kPairsAtOnce
      for (int k = 0; k < kSlices; k += 2) {
        const int slice = first_slice + k;
        uint4 a[kHalves][2];
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const u32 part = ring.weights(stage) + (first_part + h) * kPartBytes;
          a[h][0] = load_weight_slice(part, slice, warp, lane);
          a[h][1] = load_weight_slice(part, slice + 1, warp, lane);
        }
#pragma unroll
        for (int j = 0; j < kTokenGroups; ++j) {
          const uint4 b = load_matrices(swizzled(ring.activations(stage), 8 * j + lane % 8, 2 * slice + lane / 8));
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            mma_sync_m16n8k16(sum[h][j], a[h][0], b.x, b.y);
            mma_sync_m16n8k16(sum[h][j], a[h][1], b.z, b.w);
          }
        }
      }
      release<ReadBy::kLoads>(ring, item + i, thread);
    }
  }

  // The warp's 16 columns × 16 values of K: columns 0-7 and 8-15 of the first 8 values, then of the others.
  static MKTUNE_DEVICE uint4 load_weight_slice(u32 part, int slice, int warp, int lane) {
    if constexpr (kMajor == Major::kK)
      return load_matrices(swizzled(part, warp * 16 + lane % 16, 2 * slice + lane / 16));
    else
      return load_matrices_transposed(swizzled(part, slice * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2));
  }
};

}  // namespace mktune
