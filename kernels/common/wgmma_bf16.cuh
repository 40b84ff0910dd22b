// wgmma (sm_90a): D[64 weight rows][tokens] += weights · activationsᵀ over 16 values of K, bf16 in, fp32 out.
// Accumulators as in wgmma.cuh; descriptors too: a weight tile whose rows are K (N contiguous, 64 of them in 128 bytes)
// has the same 1024 bytes between its groups of 8 rows, and is read transposed.
#pragma once
#include "common/wgmma.cuh"

namespace mktune {

// Which dimension of the weights is contiguous in memory.
enum class Major { kK, kN };

}  // namespace mktune

#if MKTUNE_HAS_WGMMA
namespace mktune {

// One instruction, added to d.
template <int kTokens, Major kWeights>
MKTUNE_DEVICE void wgmma_k16(float (&d)[kTokens / 8][4], u64 weights, u64 activations) {
  constexpr int kTransposed = kWeights == Major::kN;
  // clang-format off
#define MKTUNE_D(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
  if constexpr (kTokens == 8) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3"
        "}, %4, %5, 1, 1, 1, %6, 0;\n"
        : MKTUNE_D(0)
        : "l"(weights), "l"(activations), "n"(kTransposed));
  } else if constexpr (kTokens == 16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7"
        "}, %8, %9, 1, 1, 1, %10, 0;\n"
        : MKTUNE_D(0), MKTUNE_D(1)
        : "l"(weights), "l"(activations), "n"(kTransposed));
  } else if constexpr (kTokens == 32) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, 1, 1, 1, %18, 0;\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3)
        : "l"(weights), "l"(activations), "n"(kTransposed));
  } else if constexpr (kTokens == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, 1, 1, 1, %34, 0;\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3), MKTUNE_D(4), MKTUNE_D(5), MKTUNE_D(6), MKTUNE_D(7)
        : "l"(weights), "l"(activations), "n"(kTransposed));
  } else {
    static_assert(kTokens == 128, "tokens come as 8, 16, 32, 64 or 128");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, 1, 1, 1, %66, 0;\n"
        : MKTUNE_D(0), MKTUNE_D(1), MKTUNE_D(2), MKTUNE_D(3), MKTUNE_D(4), MKTUNE_D(5), MKTUNE_D(6), MKTUNE_D(7),
          MKTUNE_D(8), MKTUNE_D(9), MKTUNE_D(10), MKTUNE_D(11), MKTUNE_D(12), MKTUNE_D(13), MKTUNE_D(14), MKTUNE_D(15)
        : "l"(weights), "l"(activations), "n"(kTransposed));
  }
#undef MKTUNE_D
  // clang-format on
}

}  // namespace mktune
#endif
