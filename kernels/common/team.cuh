// A group of warps that works on one row together. The caller says which threads and which hardware barrier.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

MKTUNE_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Sums and largest values over the warp, several at once: step by step, so that they hide each other's latencies.
template <int kCount>
MKTUNE_DEVICE void warp_sums(float (&value)[kCount]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], step);
}
template <int kCount>
MKTUNE_DEVICE void warp_maxima(float (&value)[kCount]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = fmaxf(value[i], __shfl_xor_sync(0xffffffffu, value[i], step));
}

// Largest value among `kLanes` neighbouring lanes.
template <int kLanes>
MKTUNE_DEVICE float lanes_max(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

template <int kThreads>
struct Team {
  static_assert(kThreads % 32 == 0, "a team is whole warps");
  static constexpr int kWarps = kThreads / 32;
  using Scratch = float2[kWarps];  // shared memory that `sum` needs; unused by a team of one warp

  int rank;     // of this thread, 0 … kThreads - 1; warps are aligned
  int barrier;  // hardware barrier that no other team uses meanwhile

  MKTUNE_DEVICE void sync() const {
    if constexpr (kWarps == 1)
      __syncwarp();
    else
      named_barrier_sync(barrier, kThreads);
  }

  // Both components summed over the team, the same bits in every thread. `scratch` may be used again only after a
  // later sync().
  MKTUNE_DEVICE float2 sum(float2 value, float2* scratch) const {
    value = {warp_sum(value.x), warp_sum(value.y)};
    if constexpr (kWarps == 1) return value;
    if (rank % 32 == 0) scratch[rank / 32] = value;
    sync();
    float2 total = {0.0f, 0.0f};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      total.x += scratch[warp].x;
      total.y += scratch[warp].y;
    }
    return total;
  }
};

}  // namespace mktune
