// D1: y = q_lora · W_iqᵀ (block-FP8), then per token and head: RoPE of the first 64 dims, Q128 with scale s, and the
// head's weight w = g · 32^-½ · 128^-½ · s.
//
// y is rounded to bf16 once before RoPE, which runs in fp32 and is rounded once to bf16, which is quantised.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/block_fp8_gemm.cuh"
#include "ops/index_head.cuh"

namespace mktune {

struct IndexerQ : GemmProblem<4096, 2048> {
  static constexpr int kHeads = kN / IndexHead::kDim;
  static constexpr float kWeightScale = 1.0f / 64;  // 32^-½ · 128^-½
};

struct IndexerQArgs {
  const float* cos;      // [positions, 32], constant
  const float* sin;      // [positions, 32], constant
  const float* g;        // [rows, 32]
  const i64* positions;  // [rows]
  u8* qi;                // [rows, 32, 128] e4m3
  float* w;              // [rows, 32]
  int rows;
};

// Whole warps, each of which has a row's head of its own, or that of several rows at once.
template <Trigger kTrigger>
struct IndexerQFinish {
  // kAhead: the tables' entries at these positions are fetched before `run`, which else does it.
  template <int kCount, bool kAhead>
  struct Places {
    i64 position[kCount];
    RopeFactors factors[kCount];
  };

  IndexerQArgs args;

  // Of rows row, row + step, … before `end`, kCount of them. Arguments of the step: may run before the wait.
  template <int kCount, bool kAhead>
  static MKTUNE_DEVICE Places<kCount, kAhead> load_places(const IndexerQArgs& args, int row, int step, int end) {
    Places<kCount, kAhead> places;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      places.position[i] = load_produced_i64(args.positions + min(row + i * step, end - 1));
    return places;
  }

  // The tables' entries there: they hang on the load of the position.
  template <int kCount, bool kAhead>
  static MKTUNE_DEVICE void load_factors(const IndexerQArgs& args, int lane, Places<kCount, kAhead>& places) {
    IndexHead::load_factors(args.cos, args.sin, places.position, lane, places.factors);
  }

  // One head of these rows.
  template <int kCount, bool kAhead, class Rows>
  MKTUNE_DEVICE void run(const Rows& source, Places<kCount, kAhead> places, int row, int step, int end, int head,
                         int lane) const {
    float gate[kCount];
    typename Rows::Raw raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      raw[i] = source.load(min(row + i * step, end - 1), head * IndexHead::kDim + lane * IndexHead::kUnit);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      gate[i] = load_produced_4(args.g + min(row + i * step, end - 1) * IndexerQ::kHeads + head);
    if constexpr (!kAhead) load_factors(args, lane, places);

    float4 value[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = unpacked(Rows::rounded(raw[i]));
    u32 codes[kCount];
    float scales[kCount];
    IndexHead::quantise(value, places.factors, codes, scales);

    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row + i * step >= end) continue;
      const int at = (row + i * step) * IndexerQ::kHeads + head;
      reinterpret_cast<u32*>(args.qi)[at * (IndexHead::kDim / 4) + lane] = codes[i];
      if (lane == 0) args.w[at] = gate[i] * IndexerQ::kWeightScale * scales[i];
    }
  }
};

}  // namespace mktune
