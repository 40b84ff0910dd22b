// E1: logits[m, t] = ks[t] · Σ_h w[m, h] · relu(qi[m, h] · k[t]) for t < context_len[m], keys in pages of 64 tokens.
// One tile is block_q tokens of one request against some pages of it, as roles that the caller gives threads and shared
// memory.
//
// The keys of a page are the 64-row operand, 32 heads of up to 4 tokens the other one (a "unit"): one page is read once
// for all tokens. Products are made by mma.sync, which sums in fp32. NOTE: wgmma's e4m3 sums keep fewer bits, and the
// largest error of a row of logits then passes the contract's bound.
//
//   load_pages    one warp; lane i names the i-th page
//   load_queries  one thread
//   score         4 warps; sees both through barriers, so it stands behind the waits of the threads that load
#pragma once
#include "common/hand_back.cuh"
#include "common/mma.cuh"
#include "common/ptx.cuh"

namespace mktune {

constexpr int kPageTokens = 64;

template <int kBlockQ_, int kStages>
struct PagedIndexerScore {
  static constexpr int kHeads = 32, kDim = 128, kPageRows = kPageTokens + 2;  // of 128 bytes: keys, then 64 fp32 scales
  static constexpr int kBlockQ = kBlockQ_, kThreads = 128;                    // of score
  static constexpr int kUnitTokens = kBlockQ < 4 ? kBlockQ : 4, kUnits = kBlockQ / kUnitTokens;
  static constexpr int kUnitN = kUnitTokens * kHeads;
  static constexpr int kKeyBytes = kPageTokens * kDim, kScaleBytes = kPageTokens * 4;
  static constexpr int kQueryBytes = kBlockQ * kHeads * kDim, kTokenWeightBytes = kHeads * 4;
  static constexpr int kMaxPages = 32;  // of a tile: a lane each
  static_assert(kBlockQ == 1 || kBlockQ == 2 || kBlockQ == 4 || kBlockQ == 8, "block_q is 1, 2, 4 or 8");

  // Shared memory: keys and queries by the 128-byte swizzle, which repeats every 1024 bytes, then scales, weights of
  // the heads and barriers.
  static constexpr int kQueriesAt = kStages * kKeyBytes;
  static constexpr int kScalesAt = kQueriesAt + kQueryBytes;
  static constexpr int kWeightsAt = kScalesAt + kStages * kScaleBytes;
  static constexpr int kBarriersAt = kWeightsAt + kBlockQ * kTokenWeightBytes;
  static constexpr int kBytes = kBarriersAt + 8 * (2 * kStages + 2);

  u32 base;  // shared-memory address, a multiple of 1024

  MKTUNE_DEVICE u32 keys(int stage) const { return base + stage * kKeyBytes; }
  MKTUNE_DEVICE u32 queries() const { return base + kQueriesAt; }
  MKTUNE_DEVICE u32 scales(int stage) const { return base + kScalesAt + stage * kScaleBytes; }
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
#pragma unroll
    for (int step = kBlockQ / 2; step > 0; step /= 2)
      context = max(context, __shfl_xor_sync(0xffffffffu, context, step));
    const int longest = __shfl_sync(0xffffffffu, context, 0);
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
        copy_tensor(scales(stage(at)), scale_rows, 0, row + kPageTokens, full(stage(at)));
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
    const int lane = thread % 32;
    Target target[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int token = u * kUnitTokens + lane % 4 / kLanesPerToken;
      target[u] = {logits + (tile.m + token) * stride, __shfl_sync(0xffffffffu, context, token)};
    }
    mbarrier_wait(queries_full(), cursor.tile & 1);
    begin();
    for (int page = 0; page < tile.pages; ++page)
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        Product product;
        multiply(product, cursor, page * kUnits + u, thread);
        write(product, cursor, tile.first_page, page * kUnits + u, target[u], thread);
      }
    hand_back<ReadBy::kLoads>(queries_empty(), thread);
  }

 private:
  using Product = float[kUnitN / 8][4];  // 64 keys × kUnitN heads of tokens, in fragments of m16n8

  // After the sums over heads each lane has the logits of one token of a unit.
  static constexpr int kLanesPerToken = 4 / kUnitTokens;
  struct Target {
    float* row;
    int context;
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

  // The stage of a unit's page, once it is there.
  MKTUNE_DEVICE int wait_page(Cursor cursor, int unit) const {
    const u32 at = cursor.page + unit / kUnits;
    if (unit % kUnits == 0) mbarrier_wait(full(stage(at)), phase(at));
    return stage(at);
  }
  MKTUNE_DEVICE u32 unit_queries(int unit) const { return queries() + unit % kUnits * kUnitN * kDim; }

  MKTUNE_DEVICE void multiply(Product& product, Cursor cursor, int unit, int thread) const {
    const u32 rows = keys(wait_page(cursor, unit)), columns = unit_queries(unit);
    WarpgroupMma<Mma::kMmaSync, kUnitN>::run(rows, columns, thread, [&](int j, const float(&d)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) product[j][e] = d[e];
    });
  }

  // A unit's weighted sums over the heads, times the keys' scales; hands the page back behind its last unit.
  MKTUNE_DEVICE void write(const Product& product, Cursor cursor, int first_page, int unit, const Target& target,
                           int thread) const {
    const int lane = thread % 32, page = unit / kUnits, at = stage(cursor.page + page);
    const u32 unit_weights = weights() + unit % kUnits * kUnitTokens * kTokenWeightBytes + lane % 4 * 8;
    float sum[2 * kUnitTokens];  // of each token: the thread's key, and the one 8 further
#pragma unroll
    for (int token = 0; token < kUnitTokens; ++token) {
      float low = 0.0f, high = 0.0f;
#pragma unroll
      for (int j = 0; j < kHeads / 8; ++j) {
        const float2 w = load_shared_8(unit_weights + token * kTokenWeightBytes + j * 32);
        const float(&d)[4] = product[token * (kHeads / 8) + j];
        low = fmaf(fmaxf(d[0], 0.0f), w.x, low);
        low = fmaf(fmaxf(d[1], 0.0f), w.y, low);
        high = fmaf(fmaxf(d[2], 0.0f), w.x, high);
        high = fmaf(fmaxf(d[3], 0.0f), w.y, high);
      }
      sum[2 * token] = low;
      sum[2 * token + 1] = high;
    }
    add_lanes(sum, lane);
    // Four tokens: both keys of token lane % 4. Two: one key of token lane % 4 / 2. One: the same in pairs of lanes.
    constexpr int kKept = kUnitTokens == 4 ? 2 : 1;
    const int first = kUnitTokens == 4 ? 0 : kUnitTokens == 2 ? lane % 2 : lane % 4 / 2;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int key = thread / 32 * 16 + lane / 4 + (first + i) * 8, t = (first_page + page) * kPageTokens + key;
      const float logit = sum[i] * load_shared_4(scales(at) + key * 4);
      if (t < target.context && (kUnitTokens > 1 || lane % 2 == 0)) target.row[t] = logit;
    }
    if (unit % kUnits == kUnits - 1) hand_back<ReadBy::kLoads>(empty(at), thread);
  }

  // Adds over four neighbouring lanes. At each of the two steps a lane gives half of its sums away; a last one is kept
  // by both.
  static MKTUNE_DEVICE void add_lanes(float (&sum)[2 * kUnitTokens], int lane) {
#pragma unroll
    for (int step = 2, count = 2 * kUnitTokens; step > 0; step /= 2, count /= 2) {
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
