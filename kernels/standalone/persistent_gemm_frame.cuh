// One CTA of a block-FP8 GEMM that goes through several tiles, or pieces of tiles, as a schedule says.
//
// Roles, the wait and what may stand before it are those of gemm_frame.cuh. The loaders run ahead over the borders of
// parts as far as the ring has room: memory is busy while the consumers write results. So what a ring holds before the
// wait, and what is asked into L2, may be weights of several parts.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/block_fp8_gemm.cuh"
#include "standalone/gemm_schedules.cuh"

namespace mktune {

constexpr int kPersistentConsumerBarrier = 1;

// Weights of the K groups at places `place` to `end` of a schedule.
template <class Gemm, class Schedule>
MKTUNE_DEVICE void load_scheduled_weights(typename Gemm::Ring ring, const TensorMap& weights, const Schedule& schedule,
                                          int place, int end) {
  for_each_part(schedule, place, end, [&](int at, const TileCoordinates& part, int groups) {
    Gemm::load_weights(ring, {static_cast<u32>(at), 0}, weights, part.n, part.first_group, groups);
  });
}

template <class Gemm, class Schedule>
MKTUNE_DEVICE void prefetch_scheduled_weights(const TensorMap& weights, const Schedule& schedule, int place, int end) {
  for_each_part(schedule, place, end, [&](int, const TileCoordinates& part, int groups) {
    Gemm::prefetch_weights_to_l2(weights, part.n, part.first_group, groups);
  });
}

// As Gemm::load_weight_scales, for a part that comes later. NOTE: a load of the read-only path would be moved down to
// where its value is used, behind the main loop of the part before.
template <class Op, class Gemm>
MKTUNE_DEVICE typename Gemm::WeightScales load_part_scales(const StoredScale* weight_scales, const TileCoordinates& part,
                                                           int lane) {
  if constexpr (kPackedScales) {
    return Gemm::template load_weight_scales<Op>(weight_scales, part.n, part.first_group, part.groups, lane,
                                                 [](const StoredScale* word) {
                                                   u32 v;
                                                   asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(word));
                                                   return v;
                                                 });
  } else {
    const StoredScale* first = weight_scales + part.n / 128 * Op::kGroups + part.first_group;
    const auto load = [&](int i) {
      float v = 0.0f;
      if (i < part.groups) asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(first + i));
      return v;
    };
    return {load(lane), load(lane + 32)};
  }
}

// epilogue(sum, part, thread) runs in the consumers for each part when it is summed; it may overwrite `sum`.
template <class Op, class Gemm, Gdc kGdc, Trigger kTrigger, class Schedule, class Epilogue>
MKTUNE_DEVICE void run_persistent_gemm_cta(u8* shared, const TensorMap& weights, const StoredScale* weight_scales,
                                           const TensorMap& activations, const TensorMap& activation_scales,
                                           const Schedule& schedule, int l2_groups, Epilogue epilogue) {
  constexpr int kWeightWarp = Gemm::kThreads / 32, kActivationWarp = kWeightWarp + 1;
  const int warp = warp_index();
  const typename Gemm::Ring ring{shared_address(shared)};

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kEntry) wait_for_prerequisites();

  // Prologue. The weight loader sets its barriers up itself, so that its first copies need no CTA barrier.
  const int groups = schedule.groups();
  const int in_ring = min(groups, Gemm::Ring::kStageCount);
  const int early = kGdc == Gdc::kPrologue ? 0 : min(in_ring, Gemm::kWindow);
  typename Gemm::WeightScales scales{};
  if (warp == kWeightWarp) {
    if (elect_one()) {
      ring.init_weights();
      load_scheduled_weights<Gemm>(ring, weights, schedule, 0, early);
    }
  } else if (warp == kActivationWarp) {
    if (elect_one()) {
      ring.init_activations_and_empty();
      prefetch_descriptor(activation_scales);
      prefetch_descriptor(activations);
    }
  } else {
    scales = load_part_scales<Op, Gemm>(weight_scales, schedule.from(0), threadIdx.x % 32);
  }
  __syncthreads();

  int loaded = early;
  if (kGdc == Gdc::kPrefetch && warp == kWeightWarp) {
    // The rest of the ring as earlier weights arrive, while everyone else waits already.
    if (elect_one()) {
      load_scheduled_weights<Gemm>(ring, weights, schedule, early, in_ring);
      prefetch_scheduled_weights<Gemm>(weights, schedule, in_ring, min(in_ring + l2_groups, groups));
    }
    loaded = in_ring;
  }
  if constexpr (kGdc != Gdc::kEntry) wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);

  if (warp == kWeightWarp) {
    if (elect_one()) load_scheduled_weights<Gemm>(ring, weights, schedule, loaded, groups);
  } else if (warp == kActivationWarp) {
    if (elect_one()) {
      for (RingCursor cursor{}; cursor.item < groups; ++cursor.tile) {
        const TileCoordinates part = schedule.from(cursor.item);
        Gemm::load_activations(ring, cursor, activations, activation_scales, part.m, part.first_group, part.groups);
        cursor.item += part.groups;
      }
    }
  } else {
    // NOTE: warps must be known to go round this loop together: else the compiler lets no two wgmma be under way at
    // once. Hence the shuffle, the __syncwarp, and no branch of single threads around those of an epilogue.
    for (RingCursor cursor{}; cursor.item < groups; ++cursor.tile) {
      const TileCoordinates part = schedule.from(cursor.item);
      const int in_part = __shfl_sync(0xffffffffu, part.groups, 0), end = cursor.item + in_part;
      typename Gemm::WeightScales next{};
      if (end < groups) next = load_part_scales<Op, Gemm>(weight_scales, schedule.from(end), threadIdx.x % 32);

      typename Gemm::Accumulator sum;
      Gemm::consume(ring, cursor, scales, part.first_group, in_part, sum, threadIdx.x,
                    reinterpret_cast<float*>(shared + Gemm::kExchangeAt), kPersistentConsumerBarrier);
      // The exchange has been read before it is written again. The scales' barrier orders the two as well, but
      // through the copy engine, where racecheck does not follow.
      if constexpr (Gemm::kSplitsGroups) named_barrier_sync(kPersistentConsumerBarrier, Gemm::kThreads);
      // Loads of the scales may still be under way: see hand_back.cuh.
      fence_async_proxy();
      Gemm::release_scales(ring, threadIdx.x);

      if (end == groups) trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
      delay_before_results();
      // NOTE: hidden from the compiler, which else works out where results go before the main loop, or for all parts at
      // once, and keeps it in up to 80 registers.
      int thread = threadIdx.x, place = cursor.item;
      asm volatile("" : "+r"(thread), "+r"(place));
      epilogue(sum, schedule.from(place), thread);
      cursor.item = end;
      scales = next;
      __syncwarp();
    }
  }
  stamp_end();
}

}  // namespace mktune
