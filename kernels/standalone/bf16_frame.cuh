// One CTA of a stand-alone bf16 GEMM: who plays which role, and where the wait and the trigger stand.
//
// Warps: the consumers first, then the weight loader, then the activation loader. Every thread executes the wait on
// every path. What stands before it touches constants only: with gdc = prologue the activations' descriptor; with gdc =
// prefetch also the first `stages` steps of weights, and those asked into L2; with gdc = entry nothing.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/bf16_gemm.cuh"

namespace mktune {

constexpr int kBf16ConsumerBarrier = 1;

// epilogue(sum, thread) runs in the consumers, beside(thread) in the 64 threads of the loaders once all is asked for;
// both behind their wait.
template <class Gemm, Gdc kGdc, Trigger kTrigger, class Beside, class Epilogue>
MKTUNE_DEVICE void run_bf16_gemm_cta(u8* shared, const TensorMap& weights, const TensorMap& activations,
                                     const typename Gemm::Tile& tile, int l2_steps, Beside beside, Epilogue epilogue) {
  constexpr int kWeightWarp = Gemm::kThreads / 32, kActivationWarp = kWeightWarp + 1;
  const int warp = warp_index();
  const typename Gemm::Ring ring{shared_address(shared)};

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kEntry) wait_for_prerequisites();

  // Prologue. The weight loader sets its barriers up itself, so that its first copies need no CTA barrier.
  const int in_ring = min(tile.steps, Gemm::Ring::kStageCount);
  const int early = kGdc == Gdc::kPrologue ? 0 : min(in_ring, Gemm::kWindow);
  if (warp == kWeightWarp) {
    if (elect_one()) {
      ring.init_weights();
      Gemm::load_weights(ring, 0, weights, tile, 0, early);
    }
  } else if (warp == kActivationWarp) {
    if (elect_one()) {
      ring.init_activations_and_empty();
      prefetch_descriptor(activations);
    }
  }
  __syncthreads();

  int loaded = early;
  if (kGdc == Gdc::kPrefetch && warp == kWeightWarp) {
    // The rest of the ring as earlier weights arrive, while everyone else waits already.
    if (elect_one()) {
      Gemm::load_weights(ring, 0, weights, tile, early, in_ring);
      Gemm::prefetch_weights_to_l2(weights, tile, in_ring, min(in_ring + l2_steps, tile.steps));
    }
    loaded = in_ring;
  }
  if constexpr (kGdc != Gdc::kEntry) wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);

  if (warp == kWeightWarp) {
    if (elect_one()) Gemm::load_weights(ring, 0, weights, tile, loaded, tile.steps);
  } else if (warp == kActivationWarp) {
    if (elect_one()) Gemm::load_activations(ring, 0, activations, tile);
  }
  if (warp >= kWeightWarp) {
    __syncwarp();
    beside(static_cast<int>(threadIdx.x) - Gemm::kThreads);
  } else {
    typename Gemm::Accumulator sum;
    Gemm::consume(ring, 0, tile, sum, threadIdx.x, reinterpret_cast<float*>(shared + Gemm::kExchangeAt),
                  kBf16ConsumerBarrier);
    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
    epilogue(sum, static_cast<int>(threadIdx.x));
  }
  stamp_end();
}

}  // namespace mktune
