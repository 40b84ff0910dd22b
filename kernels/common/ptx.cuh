// Instructions that CUDA C++ has no name for, one function each. No CUDA headers are included anywhere under kernels/:
// NVRTC's built-ins are enough, and an instance compiles in a few tens of milliseconds.
#pragma once

#define MKTUNE_DEVICE __device__ __forceinline__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MKTUNE_HAS_WGMMA 1
#else
#define MKTUNE_HAS_WGMMA 0
#endif

namespace mktune {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(64) TensorMap {  // CUtensorMap: opaque to device code
  u64 opaque[16];
};

MKTUNE_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// ---- warps -------------------------------------------------------------------------------------------------------
// The warp's index, known to the compiler as one value for the warp, so that role branches keep the uniform datapath.
MKTUNE_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }
// True in one thread of a whole, converged warp.
MKTUNE_DEVICE bool elect_one() {
  u32 chosen;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
  return chosen != 0;
}

// ---- programmatic dependent launch -------------------------------------------------------------------------------
// The wait returns when every direct prerequisite grid has completed and its writes are visible. The memory clobber
// keeps the compiler from moving any access of produced data above it.
// Built with MKTUNE_WITHOUT_WAIT, kernels do not wait: what a test plants for others to find.
MKTUNE_DEVICE void wait_for_prerequisites() {
#ifndef MKTUNE_WITHOUT_WAIT
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
MKTUNE_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- mbarriers ---------------------------------------------------------------------------------------------------
MKTUNE_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
MKTUNE_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
MKTUNE_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
MKTUNE_DEVICE void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Blocks until the phase with this parity has completed. A fresh barrier answers parity 1 at once.
MKTUNE_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}\n" ::"r"(barrier), "r"(parity)
      : "memory");
}
// One of 16 hardware barriers, for `threads` threads of the CTA.
MKTUNE_DEVICE void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- bulk and tensor copies --------------------------------------------------------------------------------------
MKTUNE_DEVICE void prefetch_descriptor(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// The box of `map` at (x, y) into shared memory; elements outside the tensor arrive as zeros and count as bytes.
MKTUNE_DEVICE void copy_tensor(u32 target, const TensorMap& map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          target),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The same of weights: bytes that nobody reads again soon. They leave the L2 first, so that what kernels hand on, small
// constants and code stay there while a layer's weights go by.
MKTUNE_DEVICE void copy_weights(u32 target, const TensorMap& map, int x, int y, u32 barrier) {
  u64 first_to_go;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_to_go));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "l"(first_to_go)
      : "memory");
}
MKTUNE_DEVICE void prefetch_tensor_to_l2(const TensorMap& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y)
               : "memory");
}
// `bytes` and both addresses are multiples of 16.
MKTUNE_DEVICE void copy_bytes(u32 target, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}
// Orders a thread's own shared-memory accesses before later ones by the copy engine. NOTE: without the state space it is
// a fence of global memory too, and waits until the thread's last results have been written.
MKTUNE_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- global memory -----------------------------------------------------------------------------------------------
// Constants, loaded where the source says so. NOTE: a load of the read-only path (.nc, __ldg) would be moved down past
// the wait, to where its value is first used.
MKTUNE_DEVICE uint4 load_constant_16(const void* source) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source));
  return v;
}
MKTUNE_DEVICE uint2 load_constant_8(const void* source) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(source));
  return v;
}
// Produced data is read through L2 (relaxed, GPU scope): never hoisted above a wait, never a stale L1 line.
MKTUNE_DEVICE uint4 load_produced_16(const void* source) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source)
               : "memory");
  return v;
}
MKTUNE_DEVICE uint2 load_produced_8(const void* source) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(source) : "memory");
  return v;
}
MKTUNE_DEVICE float load_produced_4(const float* source) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(source) : "memory");
  return v;
}
MKTUNE_DEVICE i64 load_produced_i64(const i64* source) {
  i64 v;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(source) : "memory");
  return v;
}
// Counts arrivals at a counter that wraps to zero after `last`; returns the count before this one. Releases the
// caller's writes (and those that a CTA barrier ordered before them) and acquires those of earlier arrivals.
MKTUNE_DEVICE u32 arrive_and_wrap(u32* counter, u32 last) {
  u32 before;
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  return before;
}

// ---- numbers -----------------------------------------------------------------------------------------------------
struct Bf16 {
  unsigned short bits;
};

// Two floats rounded to nearest even, `low` in the low half.
MKTUNE_DEVICE u32 to_bf16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
MKTUNE_DEVICE float bf16_low(u32 packed) { return __uint_as_float(packed << 16); }
MKTUNE_DEVICE float bf16_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
MKTUNE_DEVICE float4 unpacked(uint2 v) { return {bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y)}; }

// Two floats to e4m3, to nearest even, clamped to ±448; `low` in the low byte.
MKTUNE_DEVICE u32 to_e4m3x2(float low, float high) {
  unsigned short packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

MKTUNE_DEVICE u64 global_timer_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace mktune
