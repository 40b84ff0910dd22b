// C0: g = h · W_gᵀ in fp32, with K split over CTAs: there are 32 columns only.
#pragma once
#include "common/last_arriver.cuh"
#include "ops/bf16_gemm.cuh"
#include "ops/gemm_results.cuh"

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
    const PartialRows<HeadGate, kSplitK> source{partials, rows};
    const int end = min(Gemm::kBlockM, rows - m) * kUnits;
    for (int i = thread; i < end; i += Gemm::kThreads)
      reinterpret_cast<float4*>(g)[m * kUnits + i] = source.added(source.load(m + i / kUnits, i % kUnits * 4));
  }
};

// The splits of a tile are one cluster: each leaves its sums in its shared memory, then each adds some of g up. Run by
// all consumers of the tile; the CTA's other threads take part in the same two
// synchronisations.
template <class Gemm, int kSplitK>
struct HeadGateCluster {
  static constexpr int kUnits = HeadGate::kN / 4;
  static constexpr int kEach = (Gemm::kBlockM * kUnits + kSplitK - 1) / kSplitK;  // of a CTA, side by side
  using Rows = ClusterRows<Gemm, kSplitK, 1, HeadGate::kN>;
  static_assert(Rows::kBytes <= Gemm::kFlagAt, "sums are left in the ring");

  static MKTUNE_DEVICE void run(const typename Gemm::Accumulator& sum, int m, int split, float* g, int rows, int thread,
                                u8* staging, int barrier) {
    named_barrier_sync(barrier, Gemm::kThreads);  // `staging` may be what others still multiply from
    Rows::store(sum, staging, thread);
    cluster_sync();
    const Rows source{shared_address(staging), m};
    const int end = min(Gemm::kBlockM, rows - m) * kUnits;
    for (int i = split * kEach + thread; i < min((split + 1) * kEach, end); i += Gemm::kThreads)
      reinterpret_cast<float4*>(g)[m * kUnits + i] = source.added(source.load(m + i / kUnits, i % kUnits * 4));
    cluster_sync_reads();  // of this CTA's sums
  }
};

}  // namespace mktune
