// A kernel that looks at the clock and does nothing else.
#include "common/ptx.cuh"

namespace mktune {

// The steps of the global timer as one thread sees them: `count` of them, in nanoseconds.
__global__ void __launch_bounds__(32) timer_steps(u64* steps, int count) {
  if (threadIdx.x != 0) return;
  u64 last = global_timer_ns();
  for (int i = 0; i < count; ++i) {
    u64 now = global_timer_ns();
    while (now == last) now = global_timer_ns();
    steps[i] = now - last;
    last = now;
  }
}

}  // namespace mktune
