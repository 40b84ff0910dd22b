// C0: g = h · W_gᵀ in fp32, with K split over CTAs: there are 32 columns only.
#pragma once
#include "common/last_arriver.cuh"
#include "ops/bf16_gemm.cuh"

namespace mktune {

struct HeadGate {
  static constexpr int kN = 32, kK = 6144, kSteps = kK / kBf16Step;
};

// g, where split_k is 1, or one split's partial sums: fp32 [rows, 32].
template <class Gemm>
MKTUNE_DEVICE void store_gate(const typename Gemm::Accumulator& sum, int m, float* target, int rows, int thread) {
  Gemm::for_each(sum, thread, [&](int column, int token, float value) {
    if (column < HeadGate::kN && m + token < rows) target[(m + token) * HeadGate::kN + column] = value;
  });
}

// The last split of a tile to arrive adds the splits up, in their order, so that the result does not depend on which
// one was last. Run by all consumers of the tile; `flag` is one word of shared memory. The counter wraps to zero by
// itself.
template <class Gemm, int kSplitK>
struct HeadGateSplits {
  static constexpr int kUnits = HeadGate::kN / 4;  // of a row: four neighbours each

  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, int m, int split, float* partials, u32* counter,
                                float* g, int rows, int thread, volatile u32* flag, int barrier) {
    store_gate<Gemm>(sum, m, partials + split * rows * HeadGate::kN, rows, thread);
    if (!is_last_arrival<Gemm::kThreads>(counter, kSplitK, thread, flag, barrier)) return;
    const int end = min(Gemm::kBlockM, rows - m) * kUnits;
    for (int i = thread; i < end; i += Gemm::kThreads) {
      const int unit = m * kUnits + i;
      uint4 part[kSplitK];
#pragma unroll
      for (int s = 0; s < kSplitK; ++s)
        part[s] = load_produced_16(partials + (s * rows * kUnits + unit) * 4);
      float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int s = 0; s < kSplitK; ++s) {
        total.x += __uint_as_float(part[s].x);
        total.y += __uint_as_float(part[s].y);
        total.z += __uint_as_float(part[s].z);
        total.w += __uint_as_float(part[s].w);
      }
      reinterpret_cast<float4*>(g)[unit] = total;
    }
  }
};

}  // namespace mktune
