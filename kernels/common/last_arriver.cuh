// The last of several CTAs to arrive goes on with what all of them have written.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

// Whether this CTA is the last of `arrivals` at `counter`, which then wraps to zero. Called by kThreads threads
// together, which share the hardware barrier; what they wrote before is visible to those of the last one. `flag` is one
// word of shared memory.
template <int kThreads>
MKTUNE_DEVICE bool is_last_arrival(u32* counter, int arrivals, int thread, volatile u32* flag, int barrier) {
  named_barrier_sync(barrier, kThreads);
  if (thread == 0) *flag = arrive_and_wrap(counter, arrivals - 1) == static_cast<u32>(arrivals - 1);
  named_barrier_sync(barrier, kThreads);
  return *flag != 0;
}

}  // namespace mktune
