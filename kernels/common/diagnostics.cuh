// Delay injection: built with MKTUNE_DELAY_NS, every CTA sleeps that long after its trigger point and right before its
// first write of a result, so that a consumer that does not really wait reads what was there before.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

MKTUNE_DEVICE void delay_before_results() {
#ifdef MKTUNE_DELAY_NS
  const u64 start = global_timer_ns();
  while (global_timer_ns() - start < static_cast<u64>(MKTUNE_DELAY_NS)) __nanosleep(200);
#endif
}

}  // namespace mktune
