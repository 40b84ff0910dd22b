// What a trace notes beside begin and end: when a CTA's wait let it go, when it triggered, and the SM that it ran on.
//
// Only diagnostic builds have this file, which then stands before the kernel's own source (KernelSpec.prelude): from
// here on, the names of the two instructions stand for themselves and a note of the time. So no kernel knows of it, and
// what is not traced is compiled from sources that do not mention it. Needs MKTUNE_STAMPS, the number of CTAs.
#pragma once
#include "common/diagnostics.cuh"

extern "C" __device__ unsigned long long mktune_notes[3 * (MKTUNE_STAMPS)];  // ready, trigger (0: none), SM by CTA

namespace mktune {

MKTUNE_DEVICE u64* notes_of_cta() {
  return mktune_notes + 3 * (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
}

// Every thread waits; the first one's time is taken. No other warp is held up.
MKTUNE_DEVICE void wait_and_note() {
  wait_for_prerequisites();
  if (threadIdx.x == 0) {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    notes_of_cta()[0] = global_timer_ns();
    notes_of_cta()[2] = sm;
  }
}

// One thread of the CTA triggers. The time is taken first: what it lets start may start before it is noted.
MKTUNE_DEVICE void trigger_and_note() {
  const u64 now = global_timer_ns();
  launch_dependents();
  notes_of_cta()[1] = now;
}

}  // namespace mktune

#define wait_for_prerequisites wait_and_note
#define launch_dependents trigger_and_note
