// RoPE over interleaved pairs: (even, odd) → (even · cos - odd · sin, even · sin + odd · cos).
#pragma once
#include "common/ptx.cuh"

namespace mktune {

// Of two neighbouring pairs.
struct RopeFactors {
  float2 cos, sin;
};
constexpr RopeFactors kNoRotation{{1.0f, 1.0f}, {0.0f, 0.0f}};  // every value stays as it is

// Pairs `pair` and `pair` + 1 of the tables' row (constants, [positions, kPairs]).
template <int kPairs>
MKTUNE_DEVICE RopeFactors load_rope_factors(const float* cos, const float* sin, i64 position, int pair) {
  const uint2 c = load_constant_8(cos + position * kPairs + pair), s = load_constant_8(sin + position * kPairs + pair);
  return {{__uint_as_float(c.x), __uint_as_float(c.y)}, {__uint_as_float(s.x), __uint_as_float(s.y)}};
}

MKTUNE_DEVICE float4 rotated(float4 v, RopeFactors by) {
  return {v.x * by.cos.x - v.y * by.sin.x, v.x * by.sin.x + v.y * by.cos.x, v.z * by.cos.y - v.w * by.sin.y,
          v.z * by.sin.y + v.w * by.cos.y};
}

}  // namespace mktune
