// Reads bytes and does nothing else: how fast a kernel of this many bytes can be at all. Each CTA pulls its share
// through a ring of stages by bulk copies.
#include "common/ptx.cuh"

namespace mktune {

// `weights` is chunks · kChunk bytes; `sink` one float a CTA, so that the reads count.
template <int kChunk, int kStages>
__global__ void __launch_bounds__(64, 1) stream(const u8* weights, int chunks, float* sink) {
  extern __shared__ __align__(128) u8 ring[];
  __shared__ u64 barriers[kStages];
  const int share = (chunks + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
  const int count = max(0, min(share, chunks - first));
  const auto barrier = [&](int i) { return shared_address(barriers + i % kStages); };
  const auto fill = [&](int i) {
    mbarrier_expect(barrier(i), kChunk);
    copy_bytes(shared_address(ring) + i % kStages * kChunk, weights + static_cast<u64>(first + i) * kChunk, kChunk,
               barrier(i));
  };

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(shared_address(barriers + stage), 1);
    fence_mbarrier_init();
    for (int i = 0; i < min(kStages, count); ++i) fill(i);
  }
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) {
    mbarrier_wait(barrier(i), i / kStages & 1);
    if (threadIdx.x == 32) sum += *reinterpret_cast<float*>(ring + i % kStages * kChunk);
    __syncthreads();
    if (threadIdx.x == 0 && i + kStages < count) fill(i + kStages);
  }
  if (threadIdx.x == 32) sink[blockIdx.x] = sum;
}

}  // namespace mktune
