// Stands in for kernels/common/ptx.cuh where kernels run on the host: see machine.hpp.
#pragma once
#include "machine.hpp"

#include <algorithm>
#include <cmath>

#define __global__
#define __shared__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __device__
#define MKTUNE_DEVICE inline

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { int x, y, z; };
#define threadIdx (Index{machine::current, 0, 0})
#define blockIdx (Index{machine::block, 0, 0})
#define gridDim (Index{machine::grid, 1, 1})
using std::min;

inline void meet_warp() { machine::meet(machine::warps[machine::current / 32], 32); }
inline void __syncwarp() { meet_warp(); }
inline void __syncthreads() { machine::meet(machine::whole_cta, static_cast<int>(machine::fibers.size())); }
inline void __threadfence_block() {}
template <class T>
T __shfl_sync(u32, T value, int source) {
  static_assert(sizeof(T) <= 8);
  std::memcpy(&machine::exchange[machine::current], &value, sizeof(T));
  meet_warp();
  T found;
  std::memcpy(&found, &machine::exchange[machine::current / 32 * 32 + source % 32], sizeof(T));
  meet_warp();
  return found;
}
template <class T>
T __ldg(const T* source) { return *source; }
inline float __uint_as_float(u32 bits) { float v; std::memcpy(&v, &bits, 4); return v; }
inline u32 __float_as_uint(float v) { u32 bits; std::memcpy(&bits, &v, 4); return bits; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline u32 __byte_perm(u32 low, u32 high, u32 selected) {
  const u64 bytes = static_cast<u64>(high) << 32 | low;
  u32 found = 0;
  for (int i = 0; i < 4; ++i) found |= static_cast<u32>(bytes >> 8 * (selected >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}

namespace mktune {

using ::i64, ::u32, ::u64, ::u8;

alignas(1024) u8 shared[machine::kSharedBytes];

struct TensorMap {  // two dimensions, innermost first; no swizzle: mma.cuh reads what copy_tensor writes
  const u8* base;
  int element_bytes, width, height, box_width, box_height;
  i64 stride;
  bool produced;  // behind the wait only
};

inline u32 shared_address(const void* pointer) { return static_cast<u32>(static_cast<const u8*>(pointer) - shared); }
inline int warp_index() { return machine::current / 32; }
inline bool elect_one() { return machine::current % 32 == 0; }

inline void wait_for_prerequisites() { ++machine::fibers[machine::current].waits; }
inline void launch_dependents() {
  if (++machine::triggers > 1) machine::fail("a CTA triggers twice");
}

inline machine::Barrier& barrier_at(u32 address) {
  if (address % 8 != 0 || machine::barriers[address / 8].arrivals == 0) machine::fail("not an initialised mbarrier");
  return machine::barriers[address / 8];
}
inline void mbarrier_init(u32 address, u32 arrivals) {
  machine::barriers[address / 8] = {static_cast<int>(arrivals), static_cast<int>(arrivals)};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(u32 address) {
  auto& barrier = barrier_at(address);
  if (--barrier.pending < 0) machine::fail("more arrivals than an mbarrier counts");
  barrier.settle();
}
inline void mbarrier_expect(u32 address, u32 bytes) {
  barrier_at(address).bytes += bytes;
  mbarrier_arrive(address);
}
inline void mbarrier_wait(u32 address, u32 parity) {
  auto& barrier = barrier_at(address);
  machine::block_until([&barrier, parity] { return (barrier.phase & 1) != parity; });
}
inline void named_barrier_sync(int barrier, int threads) { machine::meet(machine::named[barrier], threads); }
inline void fence_async_proxy() {}

inline void prefetch_descriptor(const TensorMap&) {}
inline void copy_tensor(u32 target, const TensorMap& map, int x, int y, u32 address) {
  if (map.produced && machine::fibers[machine::current].waits == 0) machine::fail("produced data is read before the wait");
  const int bytes = map.box_width * map.box_height * map.element_bytes;
  machine::asked_bytes += bytes;
  auto* barrier = &barrier_at(address);
  machine::copies.push_back([=] {
    for (int row = 0; row < map.box_height; ++row)
      for (int column = 0; column < map.box_width; ++column) {
        u8* to = shared + target + (row * map.box_width + column) * map.element_bytes;
        const bool inside = x + column < map.width && y + row < map.height;
        const u8* from = map.base + (y + row) * map.stride + (x + column) * map.element_bytes;
        for (int i = 0; i < map.element_bytes; ++i) to[i] = inside ? from[i] : 0;
      }
    machine::landed_bytes += bytes;
    barrier->bytes -= bytes;
    barrier->settle();
  });
}
inline void copy_weights(u32 target, const TensorMap& map, int x, int y, u32 address) {
  copy_tensor(target, map, x, y, address);
}
inline void prefetch_tensor_to_l2(const TensorMap& map, int x, int y) {
  if (x >= map.width || y >= map.height) machine::fail("what is asked into L2 does not exist");
  ++machine::l2_boxes;
}

template <class T>
T loaded(const void* source) { T v; std::memcpy(&v, source, sizeof v); return v; }
template <class T>
T produced(const void* source) {
  if (machine::fibers[machine::current].waits == 0) machine::fail("produced data is read before the wait");
  return loaded<T>(source);
}
inline uint4 load_produced_16(const void* source) { return produced<uint4>(source); }
inline uint2 load_produced_8(const void* source) { return produced<uint2>(source); }
inline i64 load_produced_i64(const i64* source) { return produced<i64>(source); }
inline uint2 load_constant_8(const void* source) { return loaded<uint2>(source); }
inline u32 arrive_and_wrap(u32* counter, u32 last) {
  const u32 before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}

struct Bf16 { unsigned short bits; };
inline u32 to_bf16(float v) {
  const u32 bits = __float_as_uint(v);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float bf16_low(u32 packed) { return __uint_as_float(packed << 16); }
inline float bf16_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }
inline u32 to_bf16x2(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
u32 to_e4m3x2(float low, float high);
inline u64 global_timer_ns() { return 0; }
template <class T>
T load_part_scale(const T* source) { return *source; }
inline void load_token_scales(float& even, float& odd, u32 address) {
  std::memcpy(&even, shared + address, 4);
  std::memcpy(&odd, shared + address + 4, 4);
}

}  // namespace mktune
