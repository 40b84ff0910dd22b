// D1: y = q_lora · W_iqᵀ (block-FP8), then per token and head: RoPE of the first 64 dims, Q128 with scale s, and the head's
// weight w = g · 32^-½ · 128^-½ · s.
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
  IndexerQArgs args;

  // Has the addresses that `run` starts with translated; one thread. May run before the wait: nothing is read.
  template <class Rows>
  static MKTUNE_DEVICE void touch_row(const Rows& source, const IndexerQArgs& args, int row, int head) {
    source.touch_row(row, head * IndexHead::kDim);
    touch(args.positions + row);
    touch(args.cos);
    touch(args.sin);
    touch(args.g + row * IndexerQ::kHeads);
    touch(args.qi + row * IndexerQ::kN);
    touch(args.w + row * IndexerQ::kHeads);
  }

  // One head of rows row, row + step, … before `end`, kCount of them.
  template <int kCount, class Rows>
  MKTUNE_DEVICE void run(const Rows& source, int row, int step, int end, int head, int lane) const {
    // The position's table entries hang on a load of their own: ask first.
    i64 position[kCount];
    float gate[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) position[i] = load_produced_i64(args.positions + min(row + i * step, end - 1));
    typename Rows::Raw raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      raw[i] = source.load(min(row + i * step, end - 1), head * IndexHead::kDim + lane * IndexHead::kUnit);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      gate[i] = load_produced_4(args.g + min(row + i * step, end - 1) * IndexerQ::kHeads + head);
    RopeFactors factors[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) factors[i] = IndexHead::load_factors(args.cos, args.sin, position[i], lane);

    float4 value[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = unpacked(Rows::rounded(raw[i]));
    u32 codes[kCount];
    float scales[kCount];
    IndexHead::quantise(value, factors, codes, scales);

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
