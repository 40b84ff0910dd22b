// What the GEMM bodies do with fp32 sums in the accumulator layout: d[parts of 64 rows][groups of 8 tokens][4].
#pragma once
#include "common/ptx.cuh"

namespace mktune {

template <int kParts, int kTokenGroups>
MKTUNE_DEVICE void clear_sums(float (&sum)[kParts][kTokenGroups][4]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part)
#pragma unroll
    for (int j = 0; j < kTokenGroups; ++j) sum[part][j][0] = sum[part][j][1] = sum[part][j][2] = sum[part][j][3] = 0.0f;
}

// Two warpgroups hold partial sums of the same 64 rows: adds the second one's to the first one's. `thread` counts both
// from 0; `exchange` is shared memory of 64 · tokens floats that nobody else uses until the callers have synced again.
template <int kTokenGroups>
MKTUNE_DEVICE void add_second_warpgroup(float (&sum)[kTokenGroups][4], int thread, float* exchange, int barrier) {
  float4* mine = reinterpret_cast<float4*>(exchange) + thread % 128;
  if (thread >= 128) {
#pragma unroll
    for (int j = 0; j < kTokenGroups; ++j) mine[j * 128] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
  }
  named_barrier_sync(barrier, 256);
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

}  // namespace mktune
