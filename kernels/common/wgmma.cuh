// wgmma (sm_90a): D[64 weight rows][tokens] += weights · activationsᵀ over 32 values of K, e4m3 in, fp32 out.
//
// Thread t of the warpgroup holds d[j][2h + c]: weight row 16 * (t / 32) + t % 32 / 4 + 8 * h, token 8 * j + t % 4 * 2 + c.
#pragma once
#include "common/ptx.cuh"

#if MKTUNE_HAS_WGMMA
namespace mktune {

// Matrix descriptor of a K-major tile of 128-byte rows in the 128-byte swizzle: 1024 bytes between groups of 8 rows.
MKTUNE_DEVICE u64 wgmma_descriptor(u32 address) {
  return (u64{1} << 62) | (u64{1024 >> 4} << 32) | (u64{1} << 16) | ((address & 0x3ffff) >> 4);
}

// Keeps the compiler from touching accumulators between the fence and the wait.
template <int kGroups>
MKTUNE_DEVICE void wgmma_hold(float (&d)[kGroups][4]) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}
MKTUNE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MKTUNE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
MKTUNE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// One instruction; `accumulate` false overwrites d.
template <int kTokens>
MKTUNE_DEVICE void wgmma_k32(float (&d)[kTokens / 8][4], u64 weights, u64 activations, bool accumulate);

// clang-format off
#define MKTUNE_D(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
template <>
MKTUNE_DEVICE void wgmma_k32<8>(float (&d)[1][4], u64 weights, u64 activations, bool accumulate) {
  asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3"
        "}, %4, %5, p, 1, 1;}\n"
        : MKTUNE_D(0)
        : "l"(weights), "l"(activations), "r"(static_cast<int>(accumulate)));
}
template <>
MKTUNE_DEVICE void wgmma_k32<16>(float (&d)[2][4], u64 weights, u64 activations, bool accumulate) {
  asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7"
        "}, %8, %9, p, 1, 1;}\n"
        : MKTUNE_D(0), MKTUNE_D(1)
        : "l"(weights), "l"(activations), "r"(static_cast<int>(accumulate)));
}
template <>
MKTUNE_DEVICE void wgmma_k32<32>(float (&d)[4][4], u64 weights, u64 activations, bool accumulate) {
  asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, p, 1, 1;}\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3)
        : "l"(weights), "l"(activations), "r"(static_cast<int>(accumulate)));
}
template <>
MKTUNE_DEVICE void wgmma_k32<64>(float (&d)[8][4], u64 weights, u64 activations, bool accumulate) {
  asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, p, 1, 1;}\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3), MKTUNE_D(4), MKTUNE_D(5), MKTUNE_D(6), MKTUNE_D(7)
        : "l"(weights), "l"(activations), "r"(static_cast<int>(accumulate)));
}
template <>
MKTUNE_DEVICE void wgmma_k32<128>(float (&d)[16][4], u64 weights, u64 activations, bool accumulate) {
  asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1;}\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3), MKTUNE_D(4), MKTUNE_D(5), MKTUNE_D(6), MKTUNE_D(7),
          MKTUNE_D(8), MKTUNE_D(9), MKTUNE_D(10), MKTUNE_D(11), MKTUNE_D(12), MKTUNE_D(13), MKTUNE_D(14), MKTUNE_D(15)
        : "l"(weights), "l"(activations), "r"(static_cast<int>(accumulate)));
}
#undef MKTUNE_D
// clang-format on

}  // namespace mktune
#endif
