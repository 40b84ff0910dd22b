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

// s = max(amax, 1e-10) / 448 in IEEE fp32.
MKTUNE_DEVICE QuantScale q128_scale(float amax) {
  const float value = __fdiv_rn(fmaxf(amax, 1e-10f), kE4m3Max);
  return {value, __frcp_rn(value)};
}

// x / s as IEEE division rounds it, without its slow path: from a correctly rounded reciprocal the first correction
// gives a quotient within one unit in the last place, the second the correctly rounded one (Markstein). Quotients
// below fp32's normal range may differ, which e4m3 cannot show.
MKTUNE_DEVICE float divide_exact(float x, QuantScale scale) {
  float quotient = x * scale.reciprocal;
  quotient = fmaf(fmaf(-quotient, scale.value, x), scale.reciprocal, quotient);
  return fmaf(fmaf(-quotient, scale.value, x), scale.reciprocal, quotient);
}

// Four values over one scale, the first in the lowest byte.
MKTUNE_DEVICE u32 q128_x4(float a, float b, float c, float d, QuantScale scale) {
  const u32 low = to_e4m3x2(divide_exact(a, scale), divide_exact(b, scale));
  const u32 high = to_e4m3x2(divide_exact(c, scale), divide_exact(d, scale));
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
