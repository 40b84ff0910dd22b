// A0: r' = x + r, h = RMSNorm(r') · w, Q128(h), one row by one or several teams.
//
// With few rows most SMs would idle while a row's quantisation is bound by instruction issue, so a row may have several
// parts: each team sums the squares of the whole row, but normalises, quantises and writes its own part only.
//
// r' is summed in fp32; the residual output is its bf16, while the norm goes on from the fp32 sum. h is rounded to bf16
// once, and quantised from that.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "common/quant.cuh"
#include "common/team.cuh"

namespace mktune {

struct AddRmsnormQuantArgs {
  const Bf16* x;         // [rows, 6144]
  const Bf16* residual;  // [rows, 6144]
  const Bf16* norm_w;    // [6144], constant
  Bf16* residual_out;    // [rows, 6144]
  Bf16* h;               // [rows, 6144]
  u8* h_q;               // [rows, 6144] e4m3
  StoredScale* h_s;      // [48, padded rows]; words [12, padded rows]
  int rows;
};

template <int kThreads, int kParts = 1>
struct AddRmsnormQuant {
  static constexpr int kHidden = 6144, kGroups = kHidden / kQuantGroup;
  static constexpr int kUnit = 8;                             // elements that a thread holds side by side: 16 bytes
  static constexpr int kUnits = kHidden / kUnit / kThreads;  // of one thread
  static constexpr int kGroupLanes = kQuantGroup / kUnit;
  static constexpr int kPartUnits = kHidden / kUnit / kParts;  // whole warps: a warp's units are all in or all out
  static_assert(kUnits * kUnit * kThreads == kHidden, "threads must divide the row");
  static_assert(kPartUnits % 32 == 0 && kPartUnits * kParts * kUnit == kHidden, "parts must divide the row");

  struct NormWeights {
    uint4 unit[kUnits];
  };

  // Constants: may run before the wait.
  static MKTUNE_DEVICE NormWeights load_norm_weights(const Bf16* norm_w, Team<kThreads> team) {
    NormWeights weights;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      weights.unit[i] = load_constant_16(reinterpret_cast<const uint4*>(norm_w) + i * kThreads + team.rank);
    return weights;
  }

  template <Trigger kTrigger>
  static MKTUNE_DEVICE void run_row(const AddRmsnormQuantArgs& args, int row, int part, const NormWeights& weights,
                                    Team<kThreads> team, float2* scratch) {
    // Both inputs of all units in flight, then the fp32 sum.
    uint4 x[kUnits], residual[kUnits];
    const u64 row_units = static_cast<u64>(row) * (kHidden / kUnit);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const u64 unit = row_units + i * kThreads + team.rank;
      x[i] = load_produced_16(reinterpret_cast<const uint4*>(args.x) + unit);
      residual[i] = load_produced_16(reinterpret_cast<const uint4*>(args.residual) + unit);
    }
    float sum[kUnits][kUnit], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const u32* a = &x[i].x;
      const u32* b = &residual[i].x;
#pragma unroll
      for (int j = 0; j < kUnit / 2; ++j) {
        sum[i][2 * j] = bf16_low(a[j]) + bf16_low(b[j]);
        sum[i][2 * j + 1] = bf16_high(a[j]) + bf16_high(b[j]);
        squares = fmaf(sum[i][2 * j], sum[i][2 * j], squares);
        squares = fmaf(sum[i][2 * j + 1], sum[i][2 * j + 1], squares);
      }
    }
    const float inverse_rms = rsqrtf(team.sum({squares, 0.0f}, scratch).x * (1.0f / kHidden) + 1e-5f);

    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
    const int padded = padded_rows(args.rows);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int index = i * kThreads + team.rank;
      if (kParts > 1 && index / kPartUnits != part) continue;
      const u64 unit = row_units + index;
      const u32* w = &weights.unit[i].x;
      uint4 total, hidden;
      float value[kUnit], peak = 0.0f;
#pragma unroll
      for (int j = 0; j < kUnit / 2; ++j) {
        const float low = sum[i][2 * j], high = sum[i][2 * j + 1];
        (&total.x)[j] = to_bf16x2(low, high);
        (&hidden.x)[j] = to_bf16x2(low * inverse_rms * bf16_low(w[j]), high * inverse_rms * bf16_high(w[j]));
        value[2 * j] = bf16_low((&hidden.x)[j]);
        value[2 * j + 1] = bf16_high((&hidden.x)[j]);
        peak = fmaxf(peak, fmaxf(fabsf(value[2 * j]), fabsf(value[2 * j + 1])));
      }
      const QuantScale scale = row_scale(lanes_max<kGroupLanes>(peak));
      reinterpret_cast<uint2*>(args.h_q)[unit] = {q128_x4(value[0], value[1], value[2], value[3], scale),
                                                  q128_x4(value[4], value[5], value[6], value[7], scale)};
      reinterpret_cast<uint4*>(args.residual_out)[unit] = total;
      reinterpret_cast<uint4*>(args.h)[unit] = hidden;
      if (team.rank % kGroupLanes == 0) store_row_scale(args.h_s, index / kGroupLanes, padded, row, scale);
    }
    if (row == args.rows - 1 && part == 0) clear_padding_scales<kGroups>(args.h_s, args.rows, team.rank, kThreads);
  }
};

}  // namespace mktune
