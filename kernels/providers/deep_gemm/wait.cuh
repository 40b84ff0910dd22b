// The wait of DeepGEMM's templates, which is ours to define: every thread comes to it once, behind the prologue
// (barriers and descriptors) and before it reads anything. They have no trigger of their own; built with
// MKTUNE_TRIGGER_AFTER_WAIT, dependents may launch from there on. Include before any of their headers.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"

namespace mktune {

// Lives from a thread's wait to its end.
struct BehindWait {
  MKTUNE_DEVICE BehindWait() {
    stamp_begin();
    wait_for_prerequisites();
#ifdef MKTUNE_TRIGGER_AFTER_WAIT
    trigger_at<Trigger::kAfterWait>(Trigger::kAfterWait);
#endif
    delay_before_results();
  }
#ifdef MKTUNE_STAMPS
  // Threads end one by one, and the last one's end counts. The timer only goes up, so the end of an earlier launch
  // never stands in the way.
  MKTUNE_DEVICE ~BehindWait() {
    const u32 cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    atomicMax(&mktune_stamps[2 * cta + 1], global_timer_ns());
  }
#endif
};

}  // namespace mktune

// NOTE: a declaration, so that what it declares ends with the kernel.
#define cudaGridDependencySynchronize() [[maybe_unused]] const ::mktune::BehindWait behind_wait
