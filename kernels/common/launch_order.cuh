// Where a kernel waits for its prerequisites and where it lets its dependents launch: the knobs gdc and trigger.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

// kEntry: every thread waits first of all. kPrologue: after barriers, descriptors and constants are set up.
// kPrefetch: after the weight loader has asked for its first weights. In each of them every thread waits.
enum class Gdc { kEntry, kPrologue, kPrefetch };

// kExit: no trigger instruction. kStart: first thing in the kernel. kAfterWait: right behind the wait.
// kBeforeEpilogue: when only results are left to be written.
enum class Trigger { kExit, kStart, kAfterWait, kBeforeEpilogue };

// One thread's call counts for its CTA; dependents launch when every CTA has called or exited.
template <Trigger kTrigger>
MKTUNE_DEVICE void trigger_at(Trigger place) {
  if (kTrigger == place && threadIdx.x == 0) launch_dependents();
}

}  // namespace mktune
