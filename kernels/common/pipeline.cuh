// The ring of shared-memory stages between the loaders and the consumers of a block-FP8 GEMM.
//
// A stage holds one 128-wide K group: weights [block_n][128] and activations [block_m][128], both 128-byte swizzled.
// The two have a barrier each, since weights may arrive long before the producer of the activations has ended. Beside
// the ring lie the activations' scales [groups][block_m] of a whole tile.
// NOTE: scales are not part of the stages on purpose. Consumers read them by plain loads while the tensor cores read
// the stages; such a load may still be under way when its warp hands the stage back, and would then see the next
// group's scale.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

constexpr int kGroupBytes = 128;  // one K group of one row: 128 e4m3 values

// A role's place in a ring: K groups since the ring was initialised. Roles take it by value; their caller moves it on.
struct RingCursor {
  u32 item;
  u32 tile;  // tiles since then
};

template <int kBlockM, int kBlockN, int kStages, int kGroups, int kConsumersPerStage, int kConsumers>
struct GemmRing {
  static constexpr int kStageCount = kStages;
  static constexpr int kWeightBytes = kBlockN * kGroupBytes;
  static constexpr int kActivationBytes = kBlockM * kGroupBytes;
  static constexpr int kScaleBytes = kBlockM * 4;  // of one group
  // The swizzle repeats every 1024 bytes: tiles come first, each a multiple of that.
  static constexpr int kActivationsAt = kStages * kWeightBytes;
  static constexpr int kScalesAt = kActivationsAt + kStages * kActivationBytes;
  static constexpr int kBarriersAt = kScalesAt + kGroups * kScaleBytes;
  static constexpr int kBytes = kBarriersAt + 8 * (3 * kStages + 2);
  static_assert(kWeightBytes % 1024 == 0 && kActivationBytes % 1024 == 0, "tiles must keep the swizzle's alignment");

  u32 base;  // shared-memory address, a multiple of 1024

  static MKTUNE_DEVICE int stage(RingCursor at) { return at.item % kStages; }
  static MKTUNE_DEVICE u32 phase(RingCursor at) { return at.item / kStages & 1; }
  MKTUNE_DEVICE u32 weights(int stage) const { return base + stage * kWeightBytes; }
  MKTUNE_DEVICE u32 activations(int stage) const { return base + kActivationsAt + stage * kActivationBytes; }
  MKTUNE_DEVICE u32 scales(int group) const { return base + kScalesAt + group * kScaleBytes; }
  MKTUNE_DEVICE u32 weights_full(int stage) const { return base + kBarriersAt + 8 * stage; }
  MKTUNE_DEVICE u32 activations_full(int stage) const { return base + kBarriersAt + 8 * (kStages + stage); }
  MKTUNE_DEVICE u32 empty(int stage) const { return base + kBarriersAt + 8 * (2 * kStages + stage); }

  MKTUNE_DEVICE u32 scales_full() const { return base + kBarriersAt + 8 * 3 * kStages; }
  MKTUNE_DEVICE u32 scales_empty() const { return base + kBarriersAt + 8 * (3 * kStages + 1); }

  // One thread each. The thread that initialised a barrier may use it at once, others behind a CTA barrier; so the
  // weight loader can start on its own.
  MKTUNE_DEVICE void init_weights() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(weights_full(stage), 1);
    fence_mbarrier_init();
  }
  MKTUNE_DEVICE void init_activations_and_empty() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(activations_full(stage), 1);
      mbarrier_init(empty(stage), kConsumersPerStage);
    }
    mbarrier_init(scales_full(), 1);
    mbarrier_init(scales_empty(), kConsumers);
    fence_mbarrier_init();
  }
};

}  // namespace mktune
