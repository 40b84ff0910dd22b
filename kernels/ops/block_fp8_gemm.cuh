// Block-FP8 GEMM: y[m, n] = Σ_g a_s[m, g] · w_s[n / 128, g] · Σ_{k ∈ g} a[m, k] · w[n, k], one tile of block_m tokens ×
// block_n weight rows over a range of K groups, as roles that the caller gives threads, a ring and coordinates.
//
// Weights are the 64-row operand and tokens the narrow one, so that few tokens waste little of the tensor cores. Each
// 128-wide group's product is promoted: scaled and added to an fp32 accumulator in registers.
//
// Scales come as quant.cuh says: fp32 of weights [n / 128, groups], or words [groups / 4, n], where each row has its
// block's exponents.
//
//   load_weights      one thread; touches constants only, so it may run before the wait
//   load_activations  one thread; behind the wait
//   consume           4 or 8 whole warps; sees activations through the ring's barriers, so it stands behind the wait of
//                     the thread that loads them
#pragma once
#include "common/hand_back.cuh"
#include "common/mma.cuh"
#include "common/pipeline.cuh"
#include "common/quant.cuh"
#include "common/warpgroup_sums.cuh"

namespace mktune {

// kGroups: K groups of a tile at most. kSumParts: parts of a K group that wgmma sums by itself, since it keeps few bits
// of a sum: more are more exact, as far as registers allow.
template <Mma kMma, int kBlockM_, int kBlockN_, int kStages, int kWarps, int kGroups, int kSumParts = 1>
struct BlockFp8Gemm {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr int kThreads = kWarps * 32;  // of consume
  static constexpr int kWarpgroups = kWarps / 4;
  static_assert(kWarps == 4 || kWarps == 8, "one or two warpgroups");
  static_assert(kBlockN == 64 || kBlockN == 128, "block_n is 64 or 128");
  // Two warpgroups share a tile of 128 rows by rows, and one of 64 by even and odd K groups.
  static constexpr bool kSplitsGroups = kWarpgroups == 2 && kBlockN == 64;
  static constexpr int kHalves = kBlockN / 64 / (kSplitsGroups ? 1 : kWarpgroups);  // 64-row parts of one warpgroup
  static constexpr int kTokenGroups = kBlockM / 8;
  // Then a stage must always go to the same warpgroup: one that is ahead could take its next phase for the last but
  // one.
  static_assert(!kSplitsGroups || kStages % 2 == 0, "two warpgroups that take turns need an even number of stages");
  using Ring = GemmRing<kBlockM, kBlockN, kStages, kGroups, kSplitsGroups ? 4 : kWarps, kWarps>;
  using Multiply = WarpgroupMma<kMma, kBlockM>;
  static constexpr int kStep = kSplitsGroups ? 2 : 1;  // from one K group of a warpgroup to its next
  // K groups that a warpgroup has under way at once: what 64 registers hold. A stage is released only when its group is
  // promoted, so a warpgroup must never need more stages than its share.
  static constexpr int kParts = Multiply::kAsync && kSumParts * kHalves * kBlockM / 2 <= 64 ? kSumParts : 1;
  static constexpr int kRegisters = kParts * kHalves * kBlockM / 2;
  static constexpr int kFits = !Multiply::kAsync ? 1 : kRegisters <= 16 ? 4 : kRegisters <= 32 ? 2 : 1;
  static constexpr int kDepth = kFits * kStep <= kStages ? kFits : kFits > 1 && 2 * kStep <= kStages ? 2 : 1;
  using Accumulator = float[kHalves][kTokenGroups][4];

  // Shared memory: the ring, then where the second warpgroup hands its sums to the first.
  static constexpr int kExchangeAt = (Ring::kBytes + 127) / 128 * 128;
  static constexpr int kBytes = kExchangeAt + (kSplitsGroups ? kBlockM * kBlockN * 4 : 0);

  // Weights under way at once, in stages: enough to keep memory busy, and no more, since whatever else this GPU reads
  // or writes meanwhile (the activations; the last writes of the kernel before, which end its grid) queues behind them.
  // On an H200, 40 to 64 KB a CTA are equal; with 24 KB memory idles, and without a bound the wait ends when the ring
  // is full.
  static constexpr int kWindow = 64 * 1024 / Ring::kWeightBytes;

  // Lines of activation scales that a tile brings in: in ue8m0 as many as have words that its groups may touch.
  static constexpr int kScaleLines = kPackedScales ? (kGroups + 2) / kWordGroups + 1 : kGroups;
  static_assert(kScaleLines <= kGroups, "the ring has room for a line a group");

  // ---- loaders -----------------------------------------------------------------------------------------------------
  static MKTUNE_DEVICE void load_weights(Ring ring, RingCursor cursor, const TensorMap& weights, int n, int first_group,
                                         int groups) {
    for (int i = 0; i < groups; ++i, ++cursor.item) {
      const int stage = Ring::stage(cursor);
      // The first round finds an empty ring, whose barriers may just have been set up.
      if (cursor.item >= kStages) mbarrier_wait(ring.empty(stage), Ring::phase(cursor) ^ 1);
      if (kWindow < kStages && cursor.item >= kWindow) {
        const RingCursor before{cursor.item - kWindow, 0};
        mbarrier_wait(ring.weights_full(Ring::stage(before)), Ring::phase(before));
      }
      mbarrier_expect(ring.weights_full(stage), Ring::kWeightBytes);
      copy_weights(ring.weights(stage), weights, (first_group + i) * kQuantGroup, n, ring.weights_full(stage));
    }
  }

  static MKTUNE_DEVICE void prefetch_weights_to_l2(const TensorMap& weights, int n, int first_group, int groups) {
    for (int i = 0; i < groups; ++i) prefetch_tensor_to_l2(weights, (first_group + i) * kQuantGroup, n);
  }

  // `scales` is a map over lines of padded rows, box [kScaleLines, block_m]. Rows beyond the last arrive as zeros.
  static MKTUNE_DEVICE void load_activations(Ring ring, RingCursor cursor, const TensorMap& activations,
                                             const TensorMap& scales, int m, int first_group, int groups) {
    if (cursor.tile > 0) mbarrier_wait(ring.scales_empty(), cursor.tile - 1 & 1);
    mbarrier_expect(ring.scales_full(), kScaleLines * Ring::kScaleBytes);
    copy_tensor(ring.scales(0), scales, m, kPackedScales ? first_group / kWordGroups : first_group, ring.scales_full());
    for (int i = 0; i < groups; ++i, ++cursor.item) {
      const int stage = Ring::stage(cursor);
      if (cursor.item >= kStages) mbarrier_wait(ring.empty(stage), Ring::phase(cursor) ^ 1);
      mbarrier_expect(ring.activations_full(stage), Ring::kActivationBytes);
      copy_tensor(ring.activations(stage), activations, (first_group + i) * kQuantGroup, m, ring.activations_full(stage));
    }
  }

  // ---- consumers ---------------------------------------------------------------------------------------------------
  // Scales of one 128-row block of weights for up to 64 groups, spread over the lanes of each warp. Constants.
  struct WeightScales {
    float low, high;
    MKTUNE_DEVICE float of(int i) const { return __shfl_sync(0xffffffffu, i < 32 ? low : high, i % 32); }
  };
  // Of the tile that begins at weight row n and `first_group`; `load` loads what a pointer points to.
  template <class Op, class Load>
  static MKTUNE_DEVICE WeightScales load_weight_scales(const StoredScale* scales, int n, int first_group, int groups,
                                                       int lane, Load load) {
    if constexpr (kPackedScales) {
      const auto scale = [&](int i) {
        const int group = first_group + i;
        if (i >= groups) return 0.0f;
        return power_of_byte(load(scales + group / kWordGroups * Op::kN + n / 128 * 128), group % kWordGroups);
      };
      return {scale(lane), scale(lane + 32)};
    } else {
      const StoredScale* first = scales + n / 128 * Op::kGroups + first_group;
      return {lane < groups ? load(first + lane) : 0.0f, lane + 32 < groups ? load(first + lane + 32) : 0.0f};
    }
  }

  // Sums the tile over `groups` K groups. With two warpgroups that split the groups, the first one's threads hold the
  // result; else each warpgroup holds its own rows. `thread` counts the consumers from 0. `exchange` is shared memory;
  // the caller syncs the consumers before it is used again for the next tile.
  static MKTUNE_DEVICE void consume(Ring ring, RingCursor cursor, const WeightScales& weight_scales, int first_group,
                                    int groups, Accumulator& sum, int thread, float* exchange, int barrier) {
    const int warpgroup = kWarpgroups == 1 ? 0 : __shfl_sync(0xffffffffu, thread / 128, 0);  // uniform for the compiler
    clear_sums(sum);

    mbarrier_wait(ring.scales_full(), cursor.tile & 1);
    int i = kSplitsGroups ? warpgroup : 0;
    for (; i + (kDepth - 1) * kStep < groups; i += kDepth * kStep)
      multiply<kDepth>(ring, {cursor.item + i, 0}, weight_scales, first_group, i, sum, warpgroup, thread);
    if constexpr (kDepth > 1)
      for (; i < groups; i += kStep)
        multiply<1>(ring, {cursor.item + i, 0}, weight_scales, first_group, i, sum, warpgroup, thread);
    if constexpr (kSplitsGroups) add_second_warpgroup(sum[0], thread, exchange, barrier);
  }

  // For callers that go on to another tile: hands the scales back. Every consumer, when it has used the tile's sums.
  static MKTUNE_DEVICE void release_scales(Ring ring, int thread) {
    __threadfence_block();
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(ring.scales_empty());
  }

  // Calls visit(row, token, value) for each element this thread holds: row 0 … block_n - 1, token 0 … block_m - 1.
  // In one call of a warp, eight neighbouring rows go to each of four tokens.
  template <class Sum, class Visit>
  static MKTUNE_DEVICE void for_each(Sum& sum, int thread, Visit visit) {
    const int warpgroup = thread / 128, lane = thread % 32;
    if (kSplitsGroups && warpgroup != 0) return;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          visit(((kSplitsGroups ? 0 : warpgroup * kHalves) + half) * 64 + thread % 128 / 32 * 16 + lane / 4 + e / 2 * 8,
                8 * j + lane % 4 * 2 + e % 2, sum[half][j][e]);
  }

  // Calls visit(row, token, pair) for each two neighbouring rows, row even, of one token, rounded to bf16 and packed.
  // Whole warps only: they turn their elements round, so that in one call four lanes have eight rows of a token.
  template <class Visit>
  static MKTUNE_DEVICE void for_each_pair(const Accumulator& sum, int thread, Visit visit) {
    const int warpgroup = thread / 128, lane = thread % 32;
    if (kSplitsGroups && warpgroup != 0) return;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          visit(((kSplitsGroups ? 0 : warpgroup * kHalves) + half) * 64 + thread % 128 / 32 * 16 + h * 8 + lane % 4 * 2,
                8 * j + lane / 4, transposed(to_bf16x2(sum[half][j][2 * h], sum[half][j][2 * h + 1])));
  }

 private:
  // kCount groups from `at` on, kStep apart, added to `sum`. `group` is the first one's place among the tile's, which
  // begin at `first_group`.
  template <int kCount>
  static MKTUNE_DEVICE void multiply(Ring ring, RingCursor at, const WeightScales& weight_scales, int first_group,
                                     int group, Accumulator& sum, int warpgroup, int thread) {
    const u32 first_row = (kSplitsGroups ? 0 : warpgroup * kHalves) * 64 * kGroupBytes;
    if constexpr (Multiply::kAsync) {
      typename Multiply::Product product[kCount][kHalves][kParts];
#pragma unroll
      for (int c = 0; c < kCount; ++c)
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int p = 0; p < kParts; ++p) Multiply::fence(product[c][h][p]);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const int stage = wait_full(ring, {at.item + c * kStep, 0});
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          begin_parts(product[c][h], ring.weights(stage) + first_row + h * 64 * kGroupBytes, ring.activations(stage));
      }
      finish<kCount, 0>(ring, at, weight_scales, first_group, group, sum, product, thread);
    } else {
      const float weight_scale = weight_scales.of(group);
      const int stage = wait_full(ring, at);
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        Multiply::run(ring.weights(stage) + first_row + h * 64 * kGroupBytes, ring.activations(stage), thread % 128,
                      [&](int j, const float(&product)[4]) {
                        promote(sum[h][j], product, token_scales(ring, first_group, group), weight_scale, j, thread);
                      });
      release(ring, at, thread);
    }
  }

  template <int kPart = 0>
  static MKTUNE_DEVICE void begin_parts(typename Multiply::Product (&product)[kParts], u32 weights, u32 activations) {
    Multiply::template begin<kPart * 4 / kParts, 4 / kParts>(product[kPart], weights, activations);
    if constexpr (kPart + 1 < kParts) begin_parts<kPart + 1>(product, weights, activations);
  }

  // Ends and promotes product kThis and those behind it, in the order begun.
  template <int kCount, int kThis>
  static MKTUNE_DEVICE void finish(Ring ring, RingCursor at, const WeightScales& weight_scales, int first_group,
                                   int group, Accumulator& sum,
                                   typename Multiply::Product (&product)[kCount][kHalves][kParts], int thread) {
    const RingCursor here{at.item + kThis * kStep, 0};
    const float weight_scale = weight_scales.of(group + kThis * kStep);
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        Multiply::template end<(kCount - 1 - kThis) * kHalves * kParts>(product[kThis][h][p]);
#pragma unroll
        for (int j = 0; j < kTokenGroups; ++j)
          promote(sum[h][j], product[kThis][h][p][j], token_scales(ring, first_group, group + kThis * kStep),
                  weight_scale, j, thread);
      }
    release(ring, here, thread);
    if constexpr (kThis + 1 < kCount)
      finish<kCount, kThis + 1>(ring, at, weight_scales, first_group, group, sum, product, thread);
  }

  static MKTUNE_DEVICE int wait_full(Ring ring, RingCursor at) {
    const int stage = Ring::stage(at);
    mbarrier_wait(ring.weights_full(stage), Ring::phase(at));
    mbarrier_wait(ring.activations_full(stage), Ring::phase(at));
    return stage;
  }

  static MKTUNE_DEVICE void release(Ring ring, RingCursor at, int thread) {
    hand_back<Multiply::kAsync ? ReadBy::kTensorCores : ReadBy::kLoads>(ring.empty(Ring::stage(at)), thread);
  }

  // Where the tokens' scales of a group are in shared memory, and in ue8m0 which byte of their words.
  struct TokenScales {
    u32 line, byte;
  };
  static MKTUNE_DEVICE TokenScales token_scales(Ring ring, int first_group, int group) {
    if constexpr (!kPackedScales) return {ring.scales(group), 0};
    const int place = first_group % kWordGroups + group;
    return {ring.scales(place / kWordGroups), static_cast<u32>(place % kWordGroups)};
  }

  // Tokens 8 * j … 8 * j + 7: the product times the token's and the block's scales.
  static MKTUNE_DEVICE void promote(float (&sum)[4], const float (&product)[4], TokenScales scales, float weight_scale,
                                    int j, int thread) {
    float even, odd;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(even), "=f"(odd)
                 : "r"(scales.line + (8 * j + thread % 4 * 2) * 4)
                 : "memory");
    if constexpr (kPackedScales) {
      even = power_of_byte(__float_as_uint(even), scales.byte);
      odd = power_of_byte(__float_as_uint(odd), scales.byte);
    }
    even *= weight_scale;
    odd *= weight_scale;
    sum[0] = fmaf(product[0], even, sum[0]);
    sum[1] = fmaf(product[1], odd, sum[1]);
    sum[2] = fmaf(product[2], even, sum[2]);
    sum[3] = fmaf(product[3], odd, sum[3]);
  }
};

}  // namespace mktune
