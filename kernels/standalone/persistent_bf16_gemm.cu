// D2 with fewer CTAs than tiles, and C0 and D2 with tiles in pieces: schedule = persistent and schedule = stream_k. The
// grid is the number of CTAs. Partial sums are fp32 [most pieces of a tile, rows, n], n that of all heads. Before the
// wait: see persistent_bf16_frame.cuh.
#include "ops/head_gate.cuh"
#include "ops/q_absorb.cuh"
#include "standalone/persistent_bf16_frame.cuh"
#include "standalone/tile_pieces.cuh"

namespace mktune {

// ---- C0 -------------------------------------------------------------------------------------------------------------
struct ScheduledGate {
  static constexpr int kN = HeadGate::kN, kGroups = HeadGate::kSteps;

  template <class Gemm>
  static constexpr MKTUNE_DEVICE typename Gemm::Tile tile(const TileCoordinates& part) {
    const int k = part.first_group * kBf16Step;
    return {part.m, 0, k, k, part.groups};
  }
};

template <Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    stream_k_head_gate(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                       float* partials, u32* tile_counters, float* g, int rows, int l2_steps, int share, int longer,
                       u64 m_tiles_inverse) {
  using Gemm = Bf16Gemm<kMma, Major::kK, kBlockM, kBlockN, kStages, kWarps, HeadGate::kN>;
  extern __shared__ __align__(1024) u8 shared[];
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kFlagAt);
  const auto schedule = share_of_cta<ScheduledGate, Gemm>(rows, {share, longer, m_tiles_inverse});
  run_persistent_bf16_gemm_cta<ScheduledGate, Gemm, kGdc, kTrigger>(
      shared, weights, activations, schedule, l2_steps, [](const TileCoordinates&, int) {},
      [&](typename Gemm::Accumulator& sum, const TileCoordinates& part, int thread) {
        add_pieces<ScheduledGate, Gemm>(
            sum, part, schedule.pieces(part), partials, tile_counters, rows, thread, flag,
            kPersistentBf16ConsumerBarrier, [&] { store_gate<Gemm>(sum, part.m, g, rows, thread); },
            [&](u64 at, const float4& total) { *reinterpret_cast<float4*>(g + at) = total; });
      });
}

// ---- D2 -------------------------------------------------------------------------------------------------------------
// The columns of all heads side by side.
struct ScheduledAbsorb {
  static constexpr int kN = QAbsorb::kHeads * QAbsorb::kN, kGroups = QAbsorb::kSteps;

  template <class Gemm>
  static constexpr MKTUNE_DEVICE typename Gemm::Tile tile(const TileCoordinates& part) {
    const int head = part.n / QAbsorb::kN, k = part.first_group * kBf16Step;
    return {part.m, part.n % QAbsorb::kN, head * QAbsorb::kNope + k, head * QAbsorb::kHead + k, part.groups};
  }
};

// What of D2's parameters its results are made from and go to. Without partial sums there are no counters either: not
// read.
struct AbsorbedRows {
  const Bf16* q;
  const float* cos;
  const float* sin;
  const i64* positions;
  float* partials;
  u32* tile_counters;
  Bf16* mla_q;
  int rows;
};

// Results are staged behind the ring, which holds the next part's operands already. The n tiles of a head share its
// RoPE, each one taking every n_tiles-th token; of a tile in pieces it is done beside the first.
template <class Gemm, Gdc kGdc, Trigger kTrigger, class Schedule, class Pieces>
MKTUNE_DEVICE void run_absorb(u8* shared, const TensorMap& weights, const TensorMap& activations,
                              const AbsorbedRows& to, int l2_steps, const Schedule& schedule, Pieces pieces) {
  constexpr int kTiles = QAbsorb::kN / Gemm::kBlockN;
  const QAbsorbRope<(Gemm::kBlockM + kTiles - 1) / kTiles, 32> rope{to.q, to.cos, to.sin, to.positions, to.mla_q};
  volatile u32* flag = reinterpret_cast<u32*>(shared + Gemm::kFlagAt);
  run_persistent_bf16_gemm_cta<ScheduledAbsorb, Gemm, kGdc, kTrigger>(
      shared, weights, activations, schedule, l2_steps,
      [&](const TileCoordinates& part, int lane) {
        if (part.first_group > 0) return;
        delay_before_results();
        rope.run(part.n / QAbsorb::kN, part.m + part.n_tile % kTiles, kTiles, min(part.m + Gemm::kBlockM, to.rows),
                 lane);
      },
      [&](typename Gemm::Accumulator& sum, const TileCoordinates& part, int thread) {
        add_pieces<ScheduledAbsorb, Gemm>(
            sum, part, pieces(part), to.partials, to.tile_counters, to.rows, thread, flag,
            kPersistentBf16ConsumerBarrier,
            [&] {
              QAbsorbStore<Gemm>::run(sum, ScheduledAbsorb::tile<Gemm>(part), to.mla_q, part.n / QAbsorb::kN, to.rows,
                                      shared + Gemm::kBytes, thread);
            },
            [&](u64 at, const float4& total) {
              Bf16* target = to.mla_q + at / QAbsorb::kN * QAbsorb::kRow + at % QAbsorb::kN;
              *reinterpret_cast<uint2*>(target) = {to_bf16x2(total.x, total.y), to_bf16x2(total.z, total.w)};
            });
      });
}

template <Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    persistent_q_absorb(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                        const Bf16* q, const float* cos, const float* sin, const i64* positions, Bf16* mla_q, int rows,
                        int l2_steps, int share, int longer, u64 m_tiles_inverse) {
  using Gemm = Bf16Gemm<kMma, Major::kN, kBlockM, kBlockN, kStages, kWarps>;
  extern __shared__ __align__(1024) u8 shared[];
  run_absorb<Gemm, kGdc, kTrigger>(shared, weights, activations,
                                   {q, cos, sin, positions, nullptr, nullptr, mla_q, rows}, l2_steps,
                                   parts_of_cta<ScheduledAbsorb, Gemm, 1>(rows, {share, longer, m_tiles_inverse}),
                                   [](const TileCoordinates&) { return 1; });
}

// `tile_counters` is [tiles of all heads' columns, for each m tile].
template <Mma kMma, int kBlockM, int kBlockN, int kStages, int kWarps, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    stream_k_q_absorb(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                      const Bf16* q, const float* cos, const float* sin, const i64* positions, float* partials,
                      u32* tile_counters, Bf16* mla_q, int rows, int l2_steps, int share, int longer,
                      u64 m_tiles_inverse) {
  using Gemm = Bf16Gemm<kMma, Major::kN, kBlockM, kBlockN, kStages, kWarps>;
  extern __shared__ __align__(1024) u8 shared[];
  const auto schedule = share_of_cta<ScheduledAbsorb, Gemm>(rows, {share, longer, m_tiles_inverse});
  run_absorb<Gemm, kGdc, kTrigger>(shared, weights, activations,
                                   {q, cos, sin, positions, partials, tile_counters, mla_q, rows}, l2_steps, schedule,
                                   [&](const TileCoordinates& part) { return schedule.pieces(part); });
}

}  // namespace mktune
