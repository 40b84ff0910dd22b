// Q128: one scale per row and per 128 neighbours, values as e4m3.
//
// Scales of rows and of weights are fp32, or, built with MKTUNE_UE8M0, powers of two: the exponents of four groups that
// follow each other along K are a word, the first in its lowest byte (mktune/ops/scale_formats.py). Those of the
// indexer's query and key are fp32 either way.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

constexpr int kQuantGroup = 128;
constexpr float kE4m3Max = 448.0f;

#ifdef MKTUNE_UE8M0
constexpr bool kPackedScales = true;
using StoredScale = u32;
#else
constexpr bool kPackedScales = false;
using StoredScale = float;
#endif
constexpr int kWordGroups = 4;

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

// Of a group of a row, in the format of this build: in ue8m0 the next power of two, whose reciprocal is one as well.
MKTUNE_DEVICE QuantScale row_scale(float amax) {
  QuantScale scale = q128_scale(amax);
  if constexpr (kPackedScales) {
    const u32 power = (__float_as_uint(scale.value) + 0x7fffffu) & 0x7f800000u;
    scale = {__uint_as_float(power), __uint_as_float(0x7f000000u - power)};
  }
  return scale;
}

// 2^e of one exponent of a word.
MKTUNE_DEVICE float power_of_byte(u32 word, u32 place) {
  return __uint_as_float(__byte_perm(word, 0, 0x0444 | place << 12) >> 1);
}

// Four values over one scale, the first in the lowest byte.
MKTUNE_DEVICE u32 q128_x4(float a, float b, float c, float d, QuantScale scale) {
  const u32 low = to_e4m3x2(divide(a, scale.value, scale.reciprocal), divide(b, scale.value, scale.reciprocal));
  const u32 high = to_e4m3x2(divide(c, scale.value, scale.reciprocal), divide(d, scale.value, scale.reciprocal));
  return low | (high << 16);
}

// Scales are stored group-major: [groups, padded_rows(rows)], words likewise: [groups / 4, padded_rows(rows)].
MKTUNE_DEVICE int padded_rows(int rows) { return (rows + 3) / 4 * 4; }

MKTUNE_DEVICE void store_row_scale(StoredScale* scales, int group, int padded, int row, QuantScale scale) {
  if constexpr (kPackedScales)
    reinterpret_cast<u8*>(scales + group / kWordGroups * padded + row)[group % kWordGroups] =
        __float_as_uint(scale.value) >> 23;
  else
    scales[group * padded + row] = scale.value;
}

// Zeros the padding rows of a scale tensor; called by the team that owns the last row.
template <int kGroups>
MKTUNE_DEVICE void clear_padding_scales(StoredScale* scales, int rows, int rank, int threads) {
  constexpr int kLines = kPackedScales ? kGroups / kWordGroups : kGroups;
  const int padded = padded_rows(rows), padding = padded - rows;
  for (int i = rank; i < kLines * padding; i += threads) scales[i / padding * padded + rows + i % padding] = 0;
}

}  // namespace mktune
