// A producer that is as late as one may be, and whoever looks when its consumer has ended: see mktune/measure/probe.py.
#include "common/ptx.cuh"

namespace mktune {

// Words that a consumer reads or writes: `count` of them at `address`, in `saved` from `first` on.
struct Piece {
  u64 address, first, count;
  u64 written;   // by the consumer: nobody may have changed them before this kernel ends
  u64 poisoned;  // they were filled with ones
};

struct Report {
  u64 early;        // words that were changed too soon
  u64 producer_ns;  // when the producer had written its last word
  u64 consumer_ns;  // when the consumer's grid had ended
};

// Lets its consumer start at once, spins, looks at what the consumer may have done, and only then writes what is there
// to be read.
__global__ void __launch_bounds__(256) late_producer(const Piece* pieces, int count, const u32* saved, u64 spin_ns,
                                                     Report* report) {
  launch_dependents();
  const u64 start = global_timer_ns();
  while (global_timer_ns() - start < spin_ns) {
  }
  u64 early = 0;
  for (int p = 0; p < count; ++p) {
    const Piece piece = pieces[p];
    volatile u32* words = reinterpret_cast<volatile u32*>(piece.address);
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < piece.count; i += gridDim.x * blockDim.x) {
      const u32 right = saved[piece.first + i];
      early += piece.written && words[i] != (piece.poisoned ? ~0u : right);
      words[i] = right;
    }
  }
  if (early > 0) atomicAdd(&report->early, early);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&report->producer_ns, global_timer_ns());
}

__global__ void __launch_bounds__(32) note_end(Report* report) {
  if (threadIdx.x == 0) report->consumer_ns = global_timer_ns();
}

}  // namespace mktune
