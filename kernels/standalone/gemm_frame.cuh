// One CTA of a stand-alone block-FP8 GEMM: who plays which role, and where the wait and the trigger stand.
//
// Warps: the consumers first, then the weight loader, then the activation loader. Every thread executes the wait on
// every path. What stands before it touches constants only: with gdc = prologue the weights' scales and the
// descriptors; with gdc = prefetch also the weights that fill the ring and those asked into L2; with gdc = entry
// nothing.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/block_fp8_gemm.cuh"
#include "ops/index_head.cuh"

namespace mktune {

constexpr int kConsumerBarrier = 1;

// The tile of this CTA. The grid is (m tiles, n tiles, splits), so CTAs that read the same weights start together.
template <class Op, class Gemm, int kSplitK>
MKTUNE_DEVICE TileCoordinates tile_of_cta() {
  constexpr int kGroups = Op::kGroups / kSplitK;
  static_assert(kGroups * kSplitK == Op::kGroups, "split_k must divide the K groups");
  const int m_tile = blockIdx.x, n_tile = blockIdx.y, split = blockIdx.z;
  return {m_tile * Gemm::kBlockM, n_tile * Gemm::kBlockN, m_tile, n_tile, static_cast<int>(gridDim.y), split,
          split * kGroups, kGroups};
}

// The same where the CTAs of a head are one cluster: the grid is (splits · tiles of a head, heads, m tiles).
template <class Op, class Gemm, int kSplitK, int kTiles>
MKTUNE_DEVICE TileCoordinates tile_of_cluster_cta() {
  constexpr int kGroups = Op::kGroups / kSplitK;
  static_assert(kGroups * kSplitK == Op::kGroups, "split_k must divide the K groups");
  const int m_tile = blockIdx.z, n_tile = blockIdx.y * kTiles + blockIdx.x % kTiles, split = blockIdx.x / kTiles;
  return {m_tile * Gemm::kBlockM, n_tile * Gemm::kBlockN, m_tile, n_tile, static_cast<int>(gridDim.y) * kTiles, split,
          split * kGroups, kGroups};
}

// prepare(thread) runs in the consumers, behind their wait, while operands are on their way; epilogue(sum, thread,
// what prepare returned) when the tile is summed. beside() runs in the loaders' warps once all is asked for.
// `weight_scales` are those of all weights.
template <class Op, class Gemm, Gdc kGdc, Trigger kTrigger, class Prepare, class Epilogue, class Beside>
MKTUNE_DEVICE void run_gemm_cta(u8* shared, const TensorMap& weights, const StoredScale* weight_scales,
                                const TensorMap& activations, const TensorMap& activation_scales,
                                const TileCoordinates& tile, int l2_groups, Prepare prepare, Epilogue epilogue,
                                Beside beside) {
  constexpr int kWeightWarp = Gemm::kThreads / 32, kActivationWarp = kWeightWarp + 1;
  const int warp = warp_index();
  const typename Gemm::Ring ring{shared_address(shared)};

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kEntry) wait_for_prerequisites();

  // Prologue. The weight loader sets its barriers up itself, so that its first copies need no CTA barrier.
  const int in_ring = min(tile.groups, Gemm::Ring::kStageCount);
  const int early = kGdc == Gdc::kPrologue ? 0 : min(in_ring, Gemm::kWindow);
  typename Gemm::WeightScales scales{};
  if (warp == kWeightWarp) {
    if (elect_one()) {
      ring.init_weights();
      Gemm::load_weights(ring, {}, weights, tile.n, tile.first_group, early);
    }
  } else if (warp == kActivationWarp) {
    if (elect_one()) {
      ring.init_activations_and_empty();
      prefetch_descriptor(activation_scales);
      prefetch_descriptor(activations);
    }
  } else {
    scales = Gemm::template load_weight_scales<Op>(weight_scales, tile.n, tile.first_group, tile.groups,
                                                   threadIdx.x % 32, [](const StoredScale* at) { return __ldg(at); });
  }
  __syncthreads();

  int loaded = early;
  if (kGdc == Gdc::kPrefetch && warp == kWeightWarp) {
    // The rest of the ring as earlier weights arrive, while everyone else waits already.
    if (elect_one()) {
      Gemm::load_weights(ring, {static_cast<u32>(early), 0}, weights, tile.n, tile.first_group + early, in_ring - early);
      Gemm::prefetch_weights_to_l2(weights, tile.n, tile.first_group + in_ring, min(l2_groups, tile.groups - in_ring));
    }
    loaded = in_ring;
  }
  if constexpr (kGdc != Gdc::kEntry) wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);

  if (warp == kWeightWarp) {
    if (elect_one())
      Gemm::load_weights(ring, {static_cast<u32>(loaded), 0}, weights, tile.n, tile.first_group + loaded,
                         tile.groups - loaded);
  } else if (warp == kActivationWarp) {
    if (elect_one())
      Gemm::load_activations(ring, {}, activations, activation_scales, tile.m, tile.first_group, tile.groups);
  }
  if (warp >= kWeightWarp) {
    __syncwarp();
    beside();
  } else {
    const auto prepared = prepare(static_cast<int>(threadIdx.x));
    typename Gemm::Accumulator sum;
    Gemm::consume(ring, {}, scales, tile.first_group, tile.groups, sum, threadIdx.x,
                  reinterpret_cast<float*>(shared + Gemm::kExchangeAt), kConsumerBarrier);
    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
    epilogue(sum, static_cast<int>(threadIdx.x), prepared);
  }
  stamp_end();
}

// epilogue(sum, thread) alone.
template <class Op, class Gemm, Gdc kGdc, Trigger kTrigger, class Epilogue>
MKTUNE_DEVICE void run_gemm_cta(u8* shared, const TensorMap& weights, const StoredScale* weight_scales,
                                const TensorMap& activations, const TensorMap& activation_scales,
                                const TileCoordinates& tile, int l2_groups, Epilogue epilogue) {
  run_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups, [](int) { return 0; },
      [&](typename Gemm::Accumulator& sum, int thread, int) { epilogue(sum, thread); }, [] {});
}

// A GEMM whose CTAs of a head are one cluster that finishes the head's rows. `make_finish(thread)` is what finishes
// them, made in `prepare`'s place.
template <class Op, class Gemm, int kSplitK, Gdc kGdc, Trigger kTrigger, class MakeFinish>
MKTUNE_DEVICE void run_head_cluster(u8* shared, const TensorMap& weights, const StoredScale* weight_scales,
                                    const TensorMap& activations, const TensorMap& activation_scales, int rows,
                                    int l2_groups, MakeFinish make_finish) {
  using Cluster = HeadCluster<Gemm, kSplitK>;
  using Ready = typename Cluster::template Ready<decltype(make_finish(0))>;
  const TileCoordinates tile = tile_of_cluster_cta<Op, Gemm, kSplitK, Cluster::kTiles>();
  run_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](int thread) { return Cluster::prepare(tile, rows, thread, make_finish(thread)); },
      [&](typename Gemm::Accumulator& sum, int thread, const Ready& ready) {
        Cluster::run(sum, tile, rows, thread, shared, kConsumerBarrier, ready);
      },
      [] {
        cluster_sync();
        cluster_sync_reads();
      });
}

// A GEMM whose rows another kernel finishes, or nobody. `out` is fp32 partials [split_k, rows, n], or bf16 y [rows, n]
// where split_k is 1.
template <class Op, Mma kMma, int kBlockM, int kBlockN, int kSplitK, int kStages, int kWarps, Gdc kGdc,
          Trigger kTrigger>
__global__ void __launch_bounds__((kWarps + 2) * 32, 1)
    gemm_producer(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
                  const StoredScale* weight_scales, const __grid_constant__ TensorMap activation_scales, void* out, int rows,
                  int l2_groups) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, kBlockN, kStages, kWarps, Op::kGroups / kSplitK, Op::kSumParts>;
  extern __shared__ __align__(1024) u8 shared[];
  const TileCoordinates tile = tile_of_cta<Op, Gemm, kSplitK>();
  run_gemm_cta<Op, Gemm, kGdc, kTrigger>(
      shared, weights, weight_scales, activations, activation_scales, tile, l2_groups,
      [&](typename Gemm::Accumulator& sum, int thread) {
        if constexpr (kSplitK > 1)
          store_partials<Op, Gemm>(sum, tile, static_cast<float*>(out), rows, thread);
        else
          store_y<Op, Gemm>(sum, tile, static_cast<Bf16*>(out), rows, thread);
      });
}

}  // namespace mktune
