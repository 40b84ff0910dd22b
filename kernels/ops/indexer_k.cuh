// B1: y = h · W_kᵀ (block-FP8), then per row: LayerNorm, RoPE of the first 64 dims, Q128, and key and scale into the
// row's slot of the index-K pages.
//
// y is rounded to bf16 once before the norm; norm and RoPE run in fp32 and are rounded once to bf16, which is
// quantised.
#pragma once
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/block_fp8_gemm.cuh"
#include "ops/index_head.cuh"

namespace mktune {

struct IndexerK : GemmProblem<128, 6144> {
  // One row of 128 codes is quantised by itself: with whole K groups, wgmma's sums turn more of them at few rows than
  // the contract allows.
  static constexpr int kSumParts = 2;
  // A page: 64 keys of 128 e4m3, then their 64 fp32 scales.
  static constexpr int kPageKeys = 64, kKeyBytes = IndexHead::kDim;
  static constexpr int kScalesAt = kPageKeys * kKeyBytes, kPageBytes = kScalesAt + kPageKeys * 4;
};

struct IndexerKArgs {
  const float* ln_w;      // [128], constant
  const float* ln_b;      // [128], constant
  const float* cos;       // [positions, 32], constant
  const float* sin;       // [positions, 32], constant
  const i64* positions;   // [rows]
  const i64* slots;       // [rows]; -1: the row has no place in the pages
  u8* index_k_cache;      // [pages, 8448]
  int rows;
};

// Whole warps, each of which has a row of its own, or several at once.
template <Trigger kTrigger>
struct IndexerKFinish {
  struct NormWeights {
    float4 w, b;  // of this lane's four dims
  };
  // kAhead: the tables' entries at these positions are fetched before `run`, which else does it.
  template <int kCount, bool kAhead>
  struct Places {
    i64 position[kCount], slot[kCount];
    RopeFactors factors[kCount];
  };

  IndexerKArgs args;
  NormWeights norm;

  // Constants: may run before the wait.
  static MKTUNE_DEVICE NormWeights load_norm_weights(const IndexerKArgs& args, int lane) {
    return {four_floats(args.ln_w + lane * IndexHead::kUnit), four_floats(args.ln_b + lane * IndexHead::kUnit)};
  }

  // Of rows row, row + step, … before `end`, kCount of them. Arguments of the step: may run before the wait.
  template <int kCount, bool kAhead>
  static MKTUNE_DEVICE Places<kCount, kAhead> load_places(const IndexerKArgs& args, int row, int step, int end) {
    Places<kCount, kAhead> places;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      places.position[i] = load_produced_i64(args.positions + min(row + i * step, end - 1));
      places.slot[i] = load_produced_i64(args.slots + min(row + i * step, end - 1));
    }
    return places;
  }

  // The tables' entries there: they hang on the load of the position.
  template <int kCount, bool kAhead>
  static MKTUNE_DEVICE void load_factors(const IndexerKArgs& args, int lane, Places<kCount, kAhead>& places) {
    IndexHead::load_factors(args.cos, args.sin, places.position, lane, places.factors);
  }

  // These rows.
  template <int kCount, bool kAhead, class Rows>
  MKTUNE_DEVICE void run(const Rows& source, Places<kCount, kAhead> places, int row, int step, int end, int,
                         int lane) const {
    typename Rows::Raw raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) raw[i] = source.load(min(row + i * step, end - 1), lane * IndexHead::kUnit);
    if constexpr (!kAhead) load_factors(args, lane, places);

    float4 value[kCount];
    float statistic[kCount];  // of each row: its mean, then its variance
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] = unpacked(Rows::rounded(raw[i]));
      statistic[i] = value[i].x + value[i].y + value[i].z + value[i].w;
    }
    warp_sums(statistic);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float mean = statistic[i] * (1.0f / IndexHead::kDim);
      value[i] = {value[i].x - mean, value[i].y - mean, value[i].z - mean, value[i].w - mean};
      const float4 v = value[i];
      statistic[i] = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    warp_sums(statistic);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float inverse = rsqrtf(statistic[i] * (1.0f / IndexHead::kDim) + 1e-6f);
      const float4 v = value[i];
      value[i] = {fmaf(v.x * inverse, norm.w.x, norm.b.x), fmaf(v.y * inverse, norm.w.y, norm.b.y),
                  fmaf(v.z * inverse, norm.w.z, norm.b.z), fmaf(v.w * inverse, norm.w.w, norm.b.w)};
    }
    u32 codes[kCount];
    float scales[kCount];
    IndexHead::quantise(value, places.factors, codes, scales);

    trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
    delay_before_results();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row + i * step >= end || places.slot[i] < 0) continue;
      const i64 slot = places.slot[i];
      u8* page = args.index_k_cache + slot / IndexerK::kPageKeys * IndexerK::kPageBytes;
      const int key = static_cast<int>(slot % IndexerK::kPageKeys);
      reinterpret_cast<u32*>(page + key * IndexerK::kKeyBytes)[lane] = codes[i];
      if (lane == 0) reinterpret_cast<float*>(page + IndexerK::kScalesAt)[key] = scales[i];
    }
  }

 private:
  static MKTUNE_DEVICE float4 four_floats(const float* source) {
    const uint4 bits = load_constant_16(source);
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
  }
};

}  // namespace mktune
