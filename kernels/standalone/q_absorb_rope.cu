// The part of D2 that is no GEMM, where a provider's template computes the rest: RoPE of each head's last 64. A thread
// turns two neighbouring pairs; the grid is (blocks of tokens, heads).
//
// Before the wait, with gdc = prologue: positions (an argument that nothing in a graph writes) and the tables there.
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "common/rope.cuh"

namespace mktune {

struct QAbsorbRopeSizes {
  static constexpr int kHeads = 64, kNope = 192, kRope = 64, kHead = kNope + kRope;
  static constexpr int kAbsorbed = 512, kRow = kAbsorbed + kRope;
  static constexpr int kUnits = kRope / 4;  // threads of a token and head
};

// `q` is [rows, 64, 256], `mla_q` [rows, 64, 576], `cos` and `sin` [positions, 32].
template <int kThreads, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads)
    q_absorb_rope(const Bf16* q, const float* cos, const float* sin, const i64* positions, Bf16* mla_q, int rows) {
  using Sizes = QAbsorbRopeSizes;
  static_assert(kGdc != Gdc::kPrefetch, "there are no weights to prefetch");
  const int unit = threadIdx.x % Sizes::kUnits, head = blockIdx.y;
  const int token = blockIdx.x * (kThreads / Sizes::kUnits) + threadIdx.x / Sizes::kUnits;
  const int read = min(token, rows - 1);
  const u64 row = static_cast<u64>(read) * Sizes::kHeads + head;

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  const auto load_factors = [&] {
    const uint2 bits = load_constant_8(positions + read);
    const i64 position = static_cast<i64>(static_cast<u64>(bits.y) << 32 | bits.x);
    return load_rope_factors<Sizes::kRope / 2>(cos, sin, position, unit * 2);
  };
  RopeFactors factors;
  if constexpr (kGdc == Gdc::kPrologue) factors = load_factors();
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) factors = load_factors();

  const float4 v = rotated(unpacked(load_produced_8(q + row * Sizes::kHead + Sizes::kNope + unit * 4)), factors);
  trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
  delay_before_results();
  if (token < rows)
    reinterpret_cast<uint2*>(mla_q + row * Sizes::kRow + Sizes::kAbsorbed)[unit] = {to_bf16x2(v.x, v.y),
                                                                                    to_bf16x2(v.z, v.w)};
  stamp_end();
}

}  // namespace mktune
