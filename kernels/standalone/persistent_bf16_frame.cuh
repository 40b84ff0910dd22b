// One CTA of a bf16 GEMM that goes through several tiles, or pieces of tiles, as a schedule says.
//
// Roles, the wait and what may stand before it are those of bf16_frame.cuh. The loaders run ahead over the borders of
// parts as far as the ring has room: memory is busy while the consumers write results. So what a ring holds before the
// wait, and what is asked into L2, may be weights of several parts.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/bf16_gemm.cuh"
#include "standalone/gemm_schedules.cuh"

namespace mktune {

constexpr int kPersistentBf16ConsumerBarrier = 1;

// Weights of the steps at places `place` to `end` of a schedule. Op::tile<Gemm>(part) is where a part lies in the maps.
template <class Op, class Gemm, class Schedule>
MKTUNE_DEVICE void load_scheduled_bf16_weights(typename Gemm::Ring ring, const TensorMap& weights,
                                               const Schedule& schedule, int place, int end) {
  for_each_part(schedule, place, end, [&](int at, const TileCoordinates& part, int steps) {
    Gemm::load_weights(ring, at, weights, Op::template tile<Gemm>(part), 0, steps);
  });
}

template <class Op, class Gemm, class Schedule>
MKTUNE_DEVICE void prefetch_scheduled_bf16_weights(const TensorMap& weights, const Schedule& schedule, int place,
                                                   int end) {
  for_each_part(schedule, place, end, [&](int, const TileCoordinates& part, int steps) {
    Gemm::prefetch_weights_to_l2(weights, Op::template tile<Gemm>(part), 0, steps);
  });
}

// For each part epilogue(sum, part, thread) runs in the consumers when it is summed, and beside(part, lane) in the warp
// of the activation loader once the part's activations are asked for; both behind the wait.
template <class Op, class Gemm, Gdc kGdc, Trigger kTrigger, class Schedule, class Beside, class Epilogue>
MKTUNE_DEVICE void run_persistent_bf16_gemm_cta(u8* shared, const TensorMap& weights, const TensorMap& activations,
                                                const Schedule& schedule, int l2_steps, Beside beside,
                                                Epilogue epilogue) {
  constexpr int kWeightWarp = Gemm::kThreads / 32, kActivationWarp = kWeightWarp + 1;
  const int warp = warp_index();
  const typename Gemm::Ring ring{shared_address(shared)};

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kEntry) wait_for_prerequisites();

  // Prologue. The weight loader sets its barriers up itself, so that its first copies need no CTA barrier.
  const int steps = schedule.groups();
  const int in_ring = min(steps, Gemm::Ring::kStageCount);
  const int early = kGdc == Gdc::kPrologue ? 0 : min(in_ring, Gemm::kWindow);
  if (warp == kWeightWarp) {
    if (elect_one()) {
      ring.init_weights();
      load_scheduled_bf16_weights<Op, Gemm>(ring, weights, schedule, 0, early);
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
      load_scheduled_bf16_weights<Op, Gemm>(ring, weights, schedule, early, in_ring);
      prefetch_scheduled_bf16_weights<Op, Gemm>(weights, schedule, in_ring, min(in_ring + l2_steps, steps));
    }
    loaded = in_ring;
  }
  if constexpr (kGdc != Gdc::kEntry) wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);

  if (warp == kWeightWarp) {
    if (elect_one()) load_scheduled_bf16_weights<Op, Gemm>(ring, weights, schedule, loaded, steps);
  } else if (warp == kActivationWarp) {
    for_each_part(schedule, 0, steps, [&](int place, const TileCoordinates& part, int) {
      if (elect_one()) Gemm::load_activations(ring, place, activations, Op::template tile<Gemm>(part));
      __syncwarp();
      beside(part, static_cast<int>(threadIdx.x % 32));
      __syncwarp();
    });
  } else {
    // NOTE: warps must be known to go round this loop together: else the compiler lets no two wgmma be under way at
    // once. Hence the shuffle, the __syncwarp, and no branch of single threads around those of an epilogue.
    for (int place = 0; place < steps;) {
      const int in_part = __shfl_sync(0xffffffffu, schedule.from(place).groups, 0);
      // A part has a step; but the compiler unrolls the loop over steps, and leaves a way past all of them. The first
      // is awaited here, so that machine code behind the loop, such as a trigger, stands behind work on every path.
      mbarrier_wait(ring.activations_full(Gemm::Ring::stage(place)), Gemm::Ring::phase(place));
      typename Gemm::Accumulator sum;
      Gemm::consume(ring, place, {0, 0, 0, 0, in_part}, sum, threadIdx.x,
                    reinterpret_cast<float*>(shared + Gemm::kExchangeAt), kPersistentBf16ConsumerBarrier);
      // Nobody gets to the next part before the first warpgroup has read what the second one handed over.
      if constexpr (Gemm::kSplitsSteps) named_barrier_sync(kPersistentBf16ConsumerBarrier, Gemm::kThreads);

      if (place + in_part == steps) trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
      delay_before_results();
      // NOTE: hidden from the compiler, which else works out where results go before the main loop, or for all parts at
      // once, and keeps it in registers.
      int thread = threadIdx.x, from = place;
      asm volatile("" : "+r"(thread), "+r"(from));
      epilogue(sum, schedule.from(from), thread);
      place += in_part;
      __syncwarp();
    }
  }
  stamp_end();
}

}  // namespace mktune
