// How a warp gives shared memory back to the loader that fills it by bulk copies.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

// Who has read it: the tensor cores by descriptor (wgmma, already waited for), or the warp's own loads (ld.shared,
// ldmatrix). The latter may still be under way at the arrival, and copies are not ordered with them: hence the fence.
enum class ReadBy { kTensorCores, kLoads };

// A whole warp; one of the arrivals that `empty` counts.
template <ReadBy kReadBy>
MKTUNE_DEVICE void hand_back(u32 empty, int thread) {
  if constexpr (kReadBy == ReadBy::kLoads) fence_async_proxy();
  __syncwarp();
  if (thread % 32 == 0) mbarrier_arrive(empty);
}

}  // namespace mktune
