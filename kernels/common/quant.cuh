// Q128: one fp32 scale per row and per 128 neighbours, values as e4m3.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

constexpr int kQuantGroup = 128;
constexpr float kE4m3Max = 448.0f;

struct QuantScale {
  float value;
  float reciprocal;  // 1 / value, correctly rounded
};

// x / y as IEEE division rounds it, from the correctly rounded reciprocal of y: one correction of the product by its
// exact remainder. Right for every x of bf16 precision over 448 and over every scale of a bf16 peak, which a test walks
// through; quotients below fp32's normal range may differ, which e4m3 cannot show.
MKTUNE_DEVICE float divide(float x, float y, float reciprocal) {
  const float quotient = x * reciprocal;
  return fmaf(fmaf(-quotient, y, x), reciprocal, quotient);
}

// s = max(amax, smallest) / 448 in IEEE fp32.
MKTUNE_DEVICE QuantScale q128_scale(float amax, float smallest = 1e-10f) {
  const float value = divide(fmaxf(amax, smallest), kE4m3Max, 1.0f / kE4m3Max);
  return {value, __frcp_rn(value)};
}

// Four values over one scale, the first in the lowest byte.
MKTUNE_DEVICE u32 q128_x4(float a, float b, float c, float d, QuantScale scale) {
  const u32 low = to_e4m3x2(divide(a, scale.value, scale.reciprocal), divide(b, scale.value, scale.reciprocal));
  const u32 high = to_e4m3x2(divide(c, scale.value, scale.reciprocal), divide(d, scale.value, scale.reciprocal));
  return low | (high << 16);
}

// Scales are stored group-major: [groups, padded_rows(rows)].
MKTUNE_DEVICE int padded_rows(int rows) { return (rows + 3) / 4 * 4; }

// Zeros the padding rows of a scale tensor; called by the team that owns the last row.
template <int kGroups>
MKTUNE_DEVICE void clear_padding_scales(float* scales, int rows, int rank, int threads) {
  const int padded = padded_rows(rows), padding = padded - rows;
  for (int i = rank; i < kGroups * padding; i += threads) scales[i / padding * padded + rows + i % padding] = 0.0f;
}

}  // namespace mktune
