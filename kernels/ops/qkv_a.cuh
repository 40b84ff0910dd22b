// B0: y = h · W_aᵀ (block-FP8), then per row: RMSNorm and Q128 of the first 2048, RMSNorm of the next 512, RoPE of the
// last 64, and the last 576 into the row's slot of the MLA cache.
//
// Every element of y is rounded to bf16 once before the norms, whichever way it gets to them. Norms and RoPE then run
// in fp32 without rounding in between.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "common/quant.cuh"
#include "common/rope.cuh"
#include "common/team.cuh"
#include "ops/block_fp8_gemm.cuh"
#include "ops/gemm_results.cuh"

namespace mktune {

struct QkvA : GemmProblem<2624, 6144> {
  static constexpr int kLora = 2048, kKv = 512, kRope = 64, kCacheRow = kKv + kRope;
  static constexpr int kLoraGroups = kLora / kQuantGroup;
};

struct QkvAFinalizerArgs {
  const Bf16* q_norm_w;   // [2048], constant
  const Bf16* kv_norm_w;  // [512], constant
  const float* cos;       // [positions, 32], constant
  const float* sin;       // [positions, 32], constant
  const i64* positions;   // [rows]
  const i64* slots;       // [rows]; -1: the row has no place in the cache
  u8* q_lora_q;           // [rows, 2048] e4m3
  StoredScale* q_lora_s;  // [16, padded rows]; words [4, padded rows]
  Bf16* mla_cache;        // [slots, 576]
  int rows;
};

// ---- the finalizer: one row by one team -----------------------------------------------------------------------------
template <int kThreads>
struct QkvAFinalizer {
  // A unit is four neighbours, so that a warp's 32 units are one quantisation group. Lora units come first; the team's
  // threads go round them, then round those of kv and RoPE.
  static constexpr int kUnit = 4;
  static constexpr int kLoraUnits = QkvA::kLora / kUnit, kKvUnits = QkvA::kKv / kUnit;
  static constexpr int kTailUnits = QkvA::kCacheRow / kUnit;
  static constexpr int kLoraRounds = kLoraUnits / kThreads;
  static constexpr int kTailRounds = (kTailUnits + kThreads - 1) / kThreads;
  static_assert(kLoraRounds * kThreads == kLoraUnits, "threads must divide the lora part");

  // The norms' weights, constants: fetched ahead into registers, or one at a time where they are used.
  struct NormWeights {
    uint2 lora_[kLoraRounds], tail_[kTailRounds];
    MKTUNE_DEVICE uint2 lora(int i, int) const { return lora_[i]; }
    MKTUNE_DEVICE uint2 tail(int i, int) const { return tail_[i]; }
  };
  struct NormWeightsInMemory {
    const Bf16 *q_norm_w, *kv_norm_w;
    MKTUNE_DEVICE uint2 lora(int, int unit) const { return __ldg(reinterpret_cast<const uint2*>(q_norm_w) + unit); }
    MKTUNE_DEVICE uint2 tail(int, int unit) const { return __ldg(reinterpret_cast<const uint2*>(kv_norm_w) + unit); }
  };

  // May run before the wait.
  static MKTUNE_DEVICE NormWeights load_norm_weights(const QkvAFinalizerArgs& args, Team<kThreads> team) {
    NormWeights weights;
#pragma unroll
    for (int i = 0; i < kLoraRounds; ++i)
      weights.lora_[i] = load_constant_8(reinterpret_cast<const uint2*>(args.q_norm_w) + i * kThreads + team.rank);
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) {
      const int unit = i * kThreads + team.rank;
      weights.tail_[i] = {0, 0};
      if (unit < kKvUnits) weights.tail_[i] = load_constant_8(reinterpret_cast<const uint2*>(args.kv_norm_w) + unit);
    }
    return weights;
  }

  // kAhead: with the tables' entries at the position.
  template <bool kAhead>
  struct Place {
    i64 position, slot;
    RopeFactors factors[kTailRounds];
  };

  // Of a row. Arguments of the step: may run before the wait.
  template <bool kAhead>
  static MKTUNE_DEVICE Place<kAhead> load_place(const QkvAFinalizerArgs& args, int row, Team<kThreads> team) {
    Place<kAhead> place;
    place.position = load_produced_i64(args.positions + row);
    place.slot = load_produced_i64(args.slots + row);
    if constexpr (kAhead) load_factors(args, team, place);
    return place;
  }

  template <Trigger kTrigger, bool kAhead, class Rows, class Weights>
  static MKTUNE_DEVICE void run_row(const Rows& source, const QkvAFinalizerArgs& args, int row, Place<kAhead> place,
                                    const Weights& weights, Team<kThreads> team, float2* scratch) {
    typename Rows::Raw lora_raw[kLoraRounds], tail_raw[kTailRounds];
#pragma unroll
    for (int i = 0; i < kLoraRounds; ++i) lora_raw[i] = source.load(row, (i * kThreads + team.rank) * kUnit);
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) {
      const int unit = min(i * kThreads + team.rank, kTailUnits - 1);
      tail_raw[i] = source.load(row, QkvA::kLora + unit * kUnit);
    }
    if constexpr (!kAhead) load_factors(args, team, place);

    uint2 lora[kLoraRounds], tail[kTailRounds];  // packed: they are bf16 anyway
    float2 squares = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kLoraRounds; ++i) {
      lora[i] = Rows::rounded(lora_raw[i]);
      squares.x += square(unpacked(lora[i]));
    }
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) {
      tail[i] = Rows::rounded(tail_raw[i]);
      if (i * kThreads + team.rank < kKvUnits) squares.y += square(unpacked(tail[i]));
    }
    squares = team.sum(squares, scratch);
    const float lora_inverse = rsqrtf(squares.x * (1.0f / QkvA::kLora) + 1e-5f);
    const float kv_inverse = rsqrtf(squares.y * (1.0f / QkvA::kKv) + 1e-5f);

    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
    const int padded = padded_rows(args.rows);
    // Step by step over all rounds, so that the rounds of one thread hide each other's latencies.
    float peak[kLoraRounds];
#pragma unroll
    for (int i = 0; i < kLoraRounds; ++i) {
      const float4 v = scaled(unpacked(lora[i]), lora_inverse, weights.lora(i, i * kThreads + team.rank));
      lora[i] = {to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)};  // what gets quantised
      const float4 r = unpacked(lora[i]);
      peak[i] = fmaxf(fmaxf(fabsf(r.x), fabsf(r.y)), fmaxf(fabsf(r.z), fabsf(r.w)));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
      for (int i = 0; i < kLoraRounds; ++i) peak[i] = fmaxf(peak[i], __shfl_xor_sync(0xffffffffu, peak[i], step));
#pragma unroll
    for (int i = 0; i < kLoraRounds; ++i) {
      const int unit = i * kThreads + team.rank;
      const QuantScale scale = row_scale(peak[i]);
      const float4 r = unpacked(lora[i]);
      reinterpret_cast<u32*>(args.q_lora_q)[row * kLoraUnits + unit] = q128_x4(r.x, r.y, r.z, r.w, scale);
      if (team.rank % 32 == 0) store_row_scale(args.q_lora_s, unit / 32, padded, row, scale);
    }
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) {
      const int unit = i * kThreads + team.rank;
      const float4 v = unit < kKvUnits ? scaled(unpacked(tail[i]), kv_inverse, weights.tail(i, unit))
                                       : rotated(unpacked(tail[i]), place.factors[i]);
      if (unit < kTailUnits && place.slot >= 0)
        reinterpret_cast<uint2*>(args.mla_cache)[place.slot * kTailUnits + unit] = {to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)};
    }
    if (row == args.rows - 1)
      clear_padding_scales<QkvA::kLoraGroups>(args.q_lora_s, args.rows, team.rank, kThreads);
  }

 private:
  template <bool kAhead>
  static MKTUNE_DEVICE void load_factors(const QkvAFinalizerArgs& args, Team<kThreads> team, Place<kAhead>& place) {
#pragma unroll
    for (int i = 0; i < kTailRounds; ++i) {
      const int pair = (i * kThreads + team.rank - kKvUnits) * 2;  // of the RoPE part; two pairs a unit
      place.factors[i] = kNoRotation;
      if (pair >= 0 && pair < QkvA::kRope / 2)
        place.factors[i] = load_rope_factors<QkvA::kRope / 2>(args.cos, args.sin, place.position, pair);
    }
  }
  static MKTUNE_DEVICE float square(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
  static MKTUNE_DEVICE float4 scaled(float4 v, float factor, uint2 w) {
    return {v.x * factor * bf16_low(w.x), v.y * factor * bf16_high(w.x), v.z * factor * bf16_low(w.y),
            v.w * factor * bf16_high(w.y)};
  }
};

// finalizer = last_arriver: the last split of a tile adds the splits up, the last tile of the rows normalises them.
// Run by all consumers of the tile; `flag` is one word of shared memory. Counters wrap to zero by themselves.
struct LastArriverArgs {
  float* partials;
  Bf16* y;
  u32* tile_counters;  // [m tiles, n tiles]
  u32* row_counters;   // [m tiles]
};

template <class Gemm, int kSplitK>
struct QkvALastArriver {
  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, const TileCoordinates& tile,
                                const LastArriverArgs& workspace, const QkvAFinalizerArgs& args, int thread,
                                volatile u32* flag, int barrier) {
    if constexpr (kSplitK > 1) {
      if (!add_splits<QkvA, Gemm, kSplitK>(sum, tile, workspace.partials, workspace.tile_counters, workspace.y,
                                           args.rows, thread, flag, barrier))
        return;
    } else {
      store_y<QkvA, Gemm>(sum, tile, workspace.y, args.rows, thread);
    }
    if (!is_last_arrival<Gemm::kThreads>(workspace.row_counters + tile.m_tile, tile.n_tiles, thread, flag, barrier))
      return;
    const Team<32> team{thread % 32, 0};
    const QkvAFinalizer<32>::NormWeightsInMemory weights{args.q_norm_w, args.kv_norm_w};
    const Bf16Rows<QkvA> source{workspace.y};
    for (int row = tile.m + thread / 32; row < min(tile.m + Gemm::kBlockM, args.rows); row += Gemm::kThreads / 32)
      // The position's table entries hang on a load of their own: ask first.
      QkvAFinalizer<32>::template run_row<Trigger::kExit>(
          source, args, row, QkvAFinalizer<32>::template load_place<false>(args, row, team), weights, team, nullptr);
  }
};

}  // namespace mktune
