// What only diagnostic builds do.
//
// Delay injection: built with MKTUNE_DELAY_NS, every CTA sleeps that long after its trigger point and right before its
// first write of a result, so that a consumer that does not really wait reads what was there before.
//
// Stamps: built with MKTUNE_STAMPS, the number of its CTAs, a kernel notes in mktune_stamps when each CTA began and
// when all its threads were done, on the timer that all SMs share. The host finds the array by its name in the module.
#pragma once
#include "common/ptx.cuh"

#ifdef MKTUNE_STAMPS
extern "C" __device__ unsigned long long mktune_stamps[2 * (MKTUNE_STAMPS)];  // begin, end by CTA, in nanoseconds
#endif

namespace mktune {

MKTUNE_DEVICE void delay_before_results() {
#ifdef MKTUNE_DELAY_NS
  const u64 start = global_timer_ns();
  while (global_timer_ns() - start < static_cast<u64>(MKTUNE_DELAY_NS)) __nanosleep(200);
#endif
}

MKTUNE_DEVICE void stamp(int which) {
#ifdef MKTUNE_STAMPS
  const u32 cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x == 0) mktune_stamps[2 * cta + which] = global_timer_ns();
#endif
}
MKTUNE_DEVICE void stamp_begin() { stamp(0); }
// For all threads of the CTA: the last one's end counts.
MKTUNE_DEVICE void stamp_end() {
#ifdef MKTUNE_STAMPS
  __syncthreads();
#endif
  stamp(1);
}

}  // namespace mktune
