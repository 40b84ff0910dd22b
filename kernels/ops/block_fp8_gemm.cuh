// Block-FP8 GEMM: y[m, n] = Σ_g a_s[m, g] · w_s[n / 128, g] · Σ_{k ∈ g} a[m, k] · w[n, k], one tile of block_m tokens ×
// block_n weight rows over a range of K groups, as roles that the caller gives threads, a ring and coordinates.
//
// Weights are the 64-row operand and tokens the narrow one, so that few tokens waste little of the tensor cores. Each
// 128-wide group's product is promoted: scaled and added to an fp32 accumulator in registers.
//
//   load_weights      one thread; touches constants only, so it may run before the wait
//   load_activations  one thread; behind the wait
//   consume           4 or 8 whole warps; sees activations through the ring's barriers, so it stands behind the wait of
//                     the thread that loads them
#pragma once
#include "common/mma.cuh"
#include "common/pipeline.cuh"
#include "common/quant.cuh"

namespace mktune {

template <Mma kMma, int kBlockM_, int kBlockN_, int kStages, int kWarps>
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
  using Ring = GemmRing<kBlockM, kBlockN, kStages, kSplitsGroups ? 4 : kWarps>;
  using Accumulator = float[kHalves][kTokenGroups][4];

  // Shared memory: the ring, then where the second warpgroup hands its sums to the first.
  static constexpr int kExchangeAt = (Ring::kBytes + 127) / 128 * 128;
  static constexpr int kBytes = kExchangeAt + (kSplitsGroups ? kBlockM * kBlockN * 4 : 0);

  // ---- loaders -----------------------------------------------------------------------------------------------------
  static MKTUNE_DEVICE void load_weights(Ring ring, RingCursor cursor, const TensorMap& weights, int n, int first_group,
                                         int groups) {
    for (int i = 0; i < groups; ++i, ++cursor.item) {
      const int stage = cursor.stage<Ring>();
      // The first round finds an empty ring, whose barriers may just have been set up.
      if (cursor.item >= kStages) mbarrier_wait(ring.empty(stage), cursor.phase<Ring>() ^ 1);
      mbarrier_expect(ring.weights_full(stage), Ring::kWeightBytes);
      copy_tensor(ring.weights(stage), weights, (first_group + i) * kQuantGroup, n, ring.weights_full(stage));
    }
  }

  static MKTUNE_DEVICE void prefetch_weights_to_l2(const TensorMap& weights, int n, int first_group, int groups) {
    for (int i = 0; i < groups; ++i) prefetch_tensor_to_l2(weights, (first_group + i) * kQuantGroup, n);
  }

  // `scales` is [groups, padded rows]; rows beyond `rows` arrive as zeros or stay undefined, and reach no valid token.
  static MKTUNE_DEVICE void load_activations(Ring ring, RingCursor cursor, const TensorMap& activations,
                                             const float* scales, int m, int rows, int first_group, int groups) {
    const int padded = padded_rows(rows);
    const int scale_bytes = min(kBlockM, padded - m) * 4;
    for (int i = 0; i < groups; ++i, ++cursor.item) {
      const int stage = cursor.stage<Ring>(), group = first_group + i;
      if (cursor.item >= kStages) mbarrier_wait(ring.empty(stage), cursor.phase<Ring>() ^ 1);
      const u32 full = ring.activations_full(stage);
      mbarrier_expect(full, Ring::kActivationBytes + scale_bytes);
      copy_tensor(ring.activations(stage), activations, group * kQuantGroup, m, full);
      copy_bytes(ring.scales(stage), scales + static_cast<u64>(group) * padded + m, scale_bytes, full);
    }
  }

  // ---- consumers ---------------------------------------------------------------------------------------------------
  // Scales of one 128-row block of weights for up to 64 groups, spread over the lanes of each warp. Constants.
  struct WeightScales {
    float low, high;
    MKTUNE_DEVICE float of(int i) const { return __shfl_sync(0xffffffffu, i < 32 ? low : high, i % 32); }
  };
  static MKTUNE_DEVICE WeightScales load_weight_scales(const float* scales, int groups, int lane) {
    return {lane < groups ? __ldg(scales + lane) : 0.0f, lane + 32 < groups ? __ldg(scales + lane + 32) : 0.0f};
  }

  // Sums the tile over `groups` K groups. With two warpgroups that split the groups, the first one's threads hold the
  // result; else each warpgroup holds its own rows. `thread` counts the consumers from 0. `exchange` is shared memory;
  // the caller syncs the consumers before it is used again for the next tile.
  static MKTUNE_DEVICE void consume(Ring ring, RingCursor cursor, const WeightScales& weight_scales, int groups,
                                    Accumulator& sum, int thread, float* exchange, int barrier) {
    const int warpgroup = thread / 128, lane = thread % 32;
    constexpr int kStep = kSplitsGroups ? 2 : 1;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j) sum[h][j][0] = sum[h][j][1] = sum[h][j][2] = sum[h][j][3] = 0.0f;

    for (int i = kSplitsGroups ? warpgroup : 0; i < groups; i += kStep) {
      const RingCursor at{cursor.item + i};
      const int stage = at.stage<Ring>();
      const float weight_scale = weight_scales.of(i);
      mbarrier_wait(ring.weights_full(stage), at.phase<Ring>());
      mbarrier_wait(ring.activations_full(stage), at.phase<Ring>());
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int part = kSplitsGroups ? 0 : warpgroup * kHalves + h;
        WarpgroupMma<kMma, kBlockM>::accumulate(sum[h], ring.weights(stage) + part * 64 * kGroupBytes,
                                                ring.activations(stage), ring.scales(stage), weight_scale,
                                                thread % 128);
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(ring.empty(stage));
    }
    if constexpr (kSplitsGroups) add_second_warpgroup(sum[0], thread, exchange, barrier);
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

 private:
  static MKTUNE_DEVICE void add_second_warpgroup(float (&sum)[kTokenGroups][4], int thread, float* exchange,
                                                 int barrier) {
    float4* mine = reinterpret_cast<float4*>(exchange) + thread % 128;
    if (thread >= 128) {
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j) mine[j * 128] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
    }
    named_barrier_sync(barrier, kThreads);
    if (thread < 128) {
#pragma unroll
      for (int j = 0; j < kTokenGroups; ++j) {
        const float4 other = mine[j * 128];
        sum[j][0] += other.x;
        sum[j][1] += other.y;
        sum[j][2] += other.z;
        sum[j][3] += other.w;
      }
    }
  }
};

}  // namespace mktune
