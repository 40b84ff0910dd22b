// A0 as a kernel of its own: grid (rows, parts of a row).
// Before the wait: norm_w (constant), with gdc = prologue.
#include "ops/add_rmsnorm_quant.cuh"

namespace mktune {

template <int kThreads, int kParts, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(kThreads)
    add_rmsnorm_quant(const Bf16* x, const Bf16* residual, const Bf16* norm_w, Bf16* residual_out, Bf16* h, u8* h_q,
                      StoredScale* h_s, int rows) {
  static_assert(kGdc != Gdc::kPrefetch, "A0 has no weights to prefetch");
  using Body = AddRmsnormQuant<kThreads, kParts>;
  __shared__ typename Team<kThreads>::Scratch scratch;
  const Team<kThreads> team{static_cast<int>(threadIdx.x), 1};

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  typename Body::NormWeights weights;
  if constexpr (kGdc == Gdc::kPrologue) weights = Body::load_norm_weights(norm_w, team);
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) weights = Body::load_norm_weights(norm_w, team);

  const AddRmsnormQuantArgs args{x, residual, norm_w, residual_out, h, h_q, h_s, rows};
  Body::template run_row<kTrigger>(args, blockIdx.x, blockIdx.y, weights, team, scratch);
  stamp_end();
}

}  // namespace mktune
