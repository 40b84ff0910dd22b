// E1: logits[m, t] = ks[t] · Σ_h w[m, h] · relu(qi[m, h] · k[t]) for t < context_len[m], keys in pages of 64 tokens.
// One tile is block_q tokens of one request against some pages of it, as roles that the caller gives threads and shared
// memory. A page is read once for all of them.
//
// The keys of a page are the 64-row operand of the tensor cores, 32 heads of up to 4 tokens the other one. Those tokens
// are one warpgroup's, which keeps their weights in registers; 8 tokens are two warpgroups' on the same pages. While the
// tensor cores multiply a page, the logits of the page before are finished and written.
//
// NOTE: wgmma's e4m3 sums keep about 13 bits below their largest term. Errors of a logit stay far inside the contract's
// bounds, which are relative to the RMS of its row; but in a row of few tokens all logits may happen to be small. Tiles
// with a context of less than kExactBelow tokens are therefore multiplied by mma.sync, which sums in fp32.
//
//   load_pages    one warp; lane i names the i-th page
//   load_queries  one thread
//   score         kThreads threads; sees both through barriers, so it stands behind the waits of the threads that load
#pragma once
#include "common/hand_back.cuh"
#include "common/mma.cuh"
#include "common/ptx.cuh"

namespace mktune {

constexpr int kPageTokens = 64;

template <Mma kMma, int kBlockQ_, int kStages>
struct PagedIndexerScore {
  static constexpr int kHeads = 32, kDim = 128, kPageRows = kPageTokens + 2;  // of 128 bytes: keys, then 64 fp32 scales
  static constexpr int kBlockQ = kBlockQ_;
  static constexpr int kTokens = kBlockQ < 4 ? kBlockQ : 4, kColumns = kTokens * kHeads;  // of a warpgroup
  static constexpr int kThreads = kBlockQ / kTokens * 128;                                // of score
  static constexpr int kExactBelow = 4 * kPageTokens;
  static constexpr int kKeyBytes = kPageTokens * kDim, kScaleBytes = kPageTokens * 4;
  static constexpr int kQueryBytes = kBlockQ * kHeads * kDim, kTokenWeightBytes = kHeads * 4;
  static constexpr int kMaxPages = 32;  // of a tile: a lane each
  static_assert(kMma != Mma::kWgmma || MKTUNE_HAS_WGMMA, "wgmma exists on sm_90a only");
  static_assert(kBlockQ == 1 || kBlockQ == 2 || kBlockQ == 4 || kBlockQ == 8, "block_q is 1, 2, 4 or 8");

  // Shared memory: keys and queries by the 128-byte swizzle, which repeats every 1024 bytes, then scales, weights of
  // the heads and barriers. Scales are used after their keys were handed back, up to the next page's: hence one more.
  static constexpr int kScaleSlots = kStages + 1;
  static constexpr int kQueriesAt = kStages * kKeyBytes;
  static constexpr int kScalesAt = kQueriesAt + kQueryBytes;
  static constexpr int kWeightsAt = kScalesAt + kScaleSlots * kScaleBytes;
  static constexpr int kBarriersAt = kWeightsAt + kBlockQ * kTokenWeightBytes;
  static constexpr int kBytes = kBarriersAt + 8 * (2 * kStages + 2);

  u32 base;  // shared-memory address, a multiple of 1024

  MKTUNE_DEVICE u32 keys(int stage) const { return base + stage * kKeyBytes; }
  MKTUNE_DEVICE u32 queries() const { return base + kQueriesAt; }
  MKTUNE_DEVICE u32 scales(u32 page) const { return base + kScalesAt + page % kScaleSlots * kScaleBytes; }
  MKTUNE_DEVICE u32 weights() const { return base + kWeightsAt; }
  MKTUNE_DEVICE u32 full(int stage) const { return base + kBarriersAt + 8 * stage; }
  MKTUNE_DEVICE u32 empty(int stage) const { return base + kBarriersAt + 8 * (kStages + stage); }
  MKTUNE_DEVICE u32 queries_full() const { return base + kBarriersAt + 8 * 2 * kStages; }
  MKTUNE_DEVICE u32 queries_empty() const { return base + kBarriersAt + 8 * (2 * kStages + 1); }

  // A role's place: pages and tiles with pages since the barriers were set up. Roles take it by value; their caller
  // moves it on.
  struct Cursor {
    u32 page, tile;
  };
  static MKTUNE_DEVICE int stage(u32 page) { return page % kStages; }
  static MKTUNE_DEVICE u32 phase(u32 page) { return page / kStages & 1; }

  // One thread each, which may use its barriers at once, others behind a CTA barrier.
  MKTUNE_DEVICE void init_pages() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(full(stage), 1);
      mbarrier_init(empty(stage), kThreads / 32);
    }
    fence_mbarrier_init();
  }
  MKTUNE_DEVICE void init_queries() const {
    mbarrier_init(queries_full(), 1);
    mbarrier_init(queries_empty(), kThreads / 32);
    fence_mbarrier_init();
  }

  struct Tile {
    int m;           // first token, a row of qi
    int tokens;      // that exist, 1 … kBlockQ
    int first_page;  // of the request
    int pages;       // that some of the tokens can see
  };

  // Lane i gets the context length of the tile's i-th token, zero where there is none.
  static MKTUNE_DEVICE int load_context(const int* context_lens, int m, int tokens, int lane) {
    return lane < tokens ? load_i32(context_lens + m + lane) : 0;
  }
  // Pages of [first_page, first_page + most) that the tokens see. A whole warp.
  static MKTUNE_DEVICE int visible_pages(int context, int first_page, int most) {
    const int longest = __reduce_max_sync(0xffffffffu, context);
    return min(max((longest + kPageTokens - 1) / kPageTokens - first_page, 0), most);
  }
  // Lane i gets the number of the tile's i-th page in the pool. Beyond the table's columns nothing is read.
  static MKTUNE_DEVICE int load_page_number(const int* table_row, int first_page, int columns, int lane) {
    return first_page + lane < columns ? load_i32(table_row + first_page + lane) : 0;
  }

  // ---- loaders -----------------------------------------------------------------------------------------------------
  // Pages `from` … `to` - 1 of the tile, by maps over the pool's rows of 128 bytes: boxes of 64 and of 2. A whole warp.
  MKTUNE_DEVICE void load_pages(Cursor cursor, const TensorMap& key_rows, const TensorMap& scale_rows, int page_number,
                                int from, int to) const {
    for (int i = from; i < to; ++i) {
      const u32 at = cursor.page + i;
      const int row = __shfl_sync(0xffffffffu, page_number, i) * kPageRows;
      if (elect_one()) {
        // The first round finds an empty ring, whose barriers may just have been set up.
        if (at >= kStages) mbarrier_wait(empty(stage(at)), phase(at) ^ 1);
        mbarrier_expect(full(stage(at)), kKeyBytes + kScaleBytes);
        copy_tensor(keys(stage(at)), key_rows, 0, row, full(stage(at)));
        copy_tensor(scales(at), scale_rows, 0, row + kPageTokens, full(stage(at)));
      }
      __syncwarp();
    }
  }

  // `query_rows` is a map over [rows · 32, 128], box kBlockQ · 32. Tokens beyond `rows` arrive as zeros, without
  // weights.
  MKTUNE_DEVICE void load_queries(Cursor cursor, const TensorMap& query_rows, const float* w, int m, int rows) const {
    if (cursor.tile > 0) mbarrier_wait(queries_empty(), cursor.tile - 1 & 1);
    const int weight_bytes = min(kBlockQ, rows - m) * kTokenWeightBytes;
    mbarrier_expect(queries_full(), kQueryBytes + weight_bytes);
    copy_tensor(queries(), query_rows, 0, m * kHeads, queries_full());
    copy_bytes(weights(), w + m * kHeads, weight_bytes, queries_full());
  }

  // ---- score --------------------------------------------------------------------------------------------------------
  // `logits` is [rows, stride], `context` what load_context gave. The tile has at least one page. begin() is called
  // before the first result is written.
  template <class Begin>
  MKTUNE_DEVICE void score(Cursor cursor, const Tile& tile, int context, float* logits, i64 stride, int thread,
                           Begin begin) const {
    const int lane = thread % 32, warpgroup = kThreads == 128 ? 0 : __shfl_sync(0xffffffffu, thread / 128, 0);
    const int token = warpgroup * kTokens + lane % 4 / kLanesPerToken;
    const bool exact = __any_sync(0xffffffffu, lane < tile.tokens && context < kExactBelow);
    Part part{queries() + warpgroup * kColumns * kDim, weights() + warpgroup * kTokens * kTokenWeightBytes,
              logits + (tile.m + token) * stride, __shfl_sync(0xffffffffu, context, token), thread % 128};
    mbarrier_wait(queries_full(), cursor.tile & 1);
    part.load_weights();
    begin();
    if (kMma == Mma::kMmaSync || exact)
      score_exactly(cursor, tile, part);
    else
      score_fast(cursor, tile, part);
    hand_back<ReadBy::kLoads>(queries_empty(), thread);
  }

 private:
  // After the sums over heads each lane has the logits of one token of its warpgroup.
  static constexpr int kLanesPerToken = 4 / kTokens;

  // What a thread does of every page.
  struct Part {
    u32 queries, weights;  // of the warpgroup
    float* row;            // of logits
    int context;           // of that row
    int thread;            // of the warpgroup
    float2 weight[kColumns / 8];

    MKTUNE_DEVICE float2 load_weight(int j) const { return load_shared_8(weights + j * 32 + thread % 4 * 8); }
    MKTUNE_DEVICE void load_weights() {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) weight[j] = load_weight(j);
    }
  };

  static MKTUNE_DEVICE int load_i32(const int* source) {
    return __float_as_int(load_produced_4(reinterpret_cast<const float*>(source)));
  }
  static MKTUNE_DEVICE float2 load_shared_8(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
  }
  static MKTUNE_DEVICE float load_shared_4(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
  }

  // Each thread sums, for each token, its own key and the one 8 further: over some heads, then over four lanes.
  using Sums = float[2 * kTokens];

  MKTUNE_DEVICE void score_fast(Cursor cursor, const Tile& tile, const Part& part) const {
#if MKTUNE_HAS_WGMMA
    using Multiply = WarpgroupMma<Mma::kWgmma, kColumns>;
    Sums sum;
    u32 at = cursor.page;
    int t = tile.first_page * kPageTokens;
    for (int page = 0; page < tile.pages; ++page, ++at, t += kPageTokens) {
      typename Multiply::Product product;
      mbarrier_wait(full(stage(at)), phase(at));
      Multiply::fence(product);
      Multiply::begin(product, keys(stage(at)), part.queries);
      if (page > 0) finish(sum, scales(at - 1), t - kPageTokens, part);
      Multiply::template end<0>(product);
      hand_back<ReadBy::kTensorCores>(empty(stage(at)), part.thread);
      clear(sum);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) add_heads(product[j], part.weight[j], sum + j / (kHeads / 8) * 2);
    }
    finish(sum, scales(at - 1), t - kPageTokens, part);
#endif
  }

  MKTUNE_DEVICE void score_exactly(Cursor cursor, const Tile& tile, const Part& part) const {
    for (int page = 0; page < tile.pages; ++page) {
      const u32 at = cursor.page + page;
      Sums sum;
      clear(sum);
      mbarrier_wait(full(stage(at)), phase(at));
      multiply_exactly(keys(stage(at)), part, sum);
      hand_back<ReadBy::kLoads>(empty(stage(at)), part.thread);
      finish(sum, scales(at), (tile.first_page + page) * kPageTokens, part);
    }
  }

  static MKTUNE_DEVICE void clear(Sums& sum) {
#pragma unroll
    for (int i = 0; i < 2 * kTokens; ++i) sum[i] = 0.0f;
  }

  // Beside wgmma a token at a time, with its weights read again: this must not cost the other path registers.
  static MKTUNE_DEVICE void multiply_exactly(u32 keys, const Part& part, Sums& sum) {
    constexpr int kAtOnce = kMma == Mma::kWgmma ? 1 : kTokens;
#pragma unroll 1
    for (int first = 0; first < kTokens; first += kAtOnce) {
      float some[2 * kAtOnce] = {};
      WarpgroupMma<Mma::kMmaSync, kAtOnce * kHeads>::run(
          keys, part.queries + first * kHeads * kDim, part.thread, [&](int j, const float(&product)[4]) {
            const float2 weight = kAtOnce == kTokens ? part.weight[j] : part.load_weight(first * (kHeads / 8) + j);
            add_heads(product, weight, some + j / (kHeads / 8) * 2);
          });
#pragma unroll
      for (int i = 0; i < 2 * kTokens; ++i)
        if (i / 2 / kAtOnce * kAtOnce == first) sum[i] = some[i % (2 * kAtOnce)];
    }
  }

  // Eight heads of a token: a warp's 16 keys × 8, by fragments of m16n8, into the sums of the thread's two keys.
  static MKTUNE_DEVICE void add_heads(const float (&product)[4], float2 weight, float* sum) {
    sum[0] = fmaf(fmaxf(product[0], 0.0f), weight.x, sum[0]);
    sum[0] = fmaf(fmaxf(product[1], 0.0f), weight.y, sum[0]);
    sum[1] = fmaf(fmaxf(product[2], 0.0f), weight.x, sum[1]);
    sum[1] = fmaf(fmaxf(product[3], 0.0f), weight.y, sum[1]);
  }

  // Adds up over lanes, multiplies by the keys' scales and writes. `first_t` is the page's first token.
  static MKTUNE_DEVICE void finish(Sums& sum, u32 scales, int first_t, const Part& part) {
    const int lane = part.thread % 32;
    // Four tokens: both keys of token lane % 4. Two: one key of token lane % 4 / 2. One: the same in pairs of lanes.
    constexpr int kKept = kTokens == 4 ? 2 : 1;
    const int first = kTokens == 4 ? 0 : kTokens == 2 ? lane % 2 : lane % 4 / 2;
    const int key = part.thread / 32 * 16 + lane / 4 + first * 8, t = first_t + key;
    float scale[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) scale[i] = load_shared_4(scales + (key + i * 8) * 4);
    add_lanes(sum, lane);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (t + i * 8 < part.context && (kTokens > 1 || lane % 2 == 0)) part.row[t + i * 8] = sum[i] * scale[i];
  }

  // Adds over four neighbouring lanes. At each of the two steps a lane gives half of its sums away; a last one is kept
  // by both.
  static MKTUNE_DEVICE void add_lanes(Sums& sum, int lane) {
#pragma unroll
    for (int step = 2, count = 2 * kTokens; step > 0; step /= 2, count /= 2) {
      if (count == 1) {
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], step);
        continue;
      }
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const float kept = lane & step ? sum[i + count / 2] : sum[i], given = lane & step ? sum[i] : sum[i + count / 2];
        sum[i] = kept + __shfl_xor_sync(0xffffffffu, given, step);
      }
    }
  }
};

}  // namespace mktune
