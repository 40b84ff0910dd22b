// CTAs of one cluster that read one another's shared memory.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

// Every thread of every CTA of the cluster, in whole warps. What any of them wrote before is visible to all behind it.
MKTUNE_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same of what threads have done, not of what they have written: nobody still reads this CTA's shared memory.
MKTUNE_DEVICE void cluster_sync_reads() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// 16 bytes of the shared memory of CTA `rank` of the cluster, at what `address` is in this one.
MKTUNE_DEVICE uint4 load_of_cta_16(u32 address, int rank) {
  u32 there;
  uint4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

}  // namespace mktune
