// N: h = y / sqrt(mean(y²) + 1e-5) · w, summed in fp32 and rounded to bf16 once. One CTA a row.
// Before the wait: norm_w (constant), with gdc = prologue.
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "common/team.cuh"

namespace mktune {

template <int kThreads, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads) row_norm(const Bf16* y, const Bf16* norm_w, Bf16* h, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "there are no weights to prefetch");
  constexpr int kHidden = 6144, kUnits = kHidden / 8 / kThreads;  // of 16 bytes, of one thread
  static_assert(kUnits * 8 * kThreads == kHidden, "threads must divide the row");
  __shared__ typename Team<kThreads>::Scratch scratch;
  const Team<kThreads> team{static_cast<int>(threadIdx.x), 1};
  uint4 weights[kUnits], values[kUnits];
  const auto load_weights = [&] {
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      weights[i] = load_constant_16(reinterpret_cast<const uint4*>(norm_w) + i * kThreads + team.rank);
  };

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kPrologue) load_weights();
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) load_weights();

  const u64 first = static_cast<u64>(blockIdx.x) * (kHidden / 8) + team.rank;
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    values[i] = load_produced_16(reinterpret_cast<const uint4*>(y) + first + i * kThreads);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float low = bf16_low((&values[i].x)[j]), high = bf16_high((&values[i].x)[j]);
      squares = fmaf(low, low, fmaf(high, high, squares));
    }
  const float inverse_rms = rsqrtf(team.sum({squares, 0.0f}, scratch).x * (1.0f / kHidden) + 1e-5f);

  trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
  delay_before_results();
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    uint4 scaled;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 v = (&values[i].x)[j], w = (&weights[i].x)[j];
      (&scaled.x)[j] = to_bf16x2(bf16_low(v) * inverse_rms * bf16_low(w), bf16_high(v) * inverse_rms * bf16_high(w));
    }
    reinterpret_cast<uint4*>(h)[first + i * kThreads] = scaled;
  }
  stamp_end();
}

}  // namespace mktune
