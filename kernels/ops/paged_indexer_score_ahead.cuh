// E1 by wgmma, with products always under way: the bodies of paged_indexer_score.cuh but for score().
//
// A warpgroup has about as much to add up as to multiply, and warpgroups that share the tensor cores equally come to
// their sums at the same time. What is multiplied meanwhile is therefore (kAhead):
//
//   kHalf   the other half of its four tokens, in the other half of the accumulators
//   kPage   the next page, in a second set of accumulators
//   kTurns  the next page, by another warpgroup
//
// NOTE: a warp that issues wgmma waits while the tensor cores are busy with earlier ones, all but the last. Two
// warpgroups that multiply ahead for themselves wait so together, and add up together. In turns one has the tensor cores
// to itself, and the other one's issue slots are free for its sums.
#pragma once
#include "ops/paged_indexer_score.cuh"

namespace mktune {

enum class Ahead { kHalf, kPage, kTurns };

// The base loads, and multiplies by mma.sync where contexts need its sums.
template <int kBlockQ_, int kStages, Ahead kAhead>
struct PagedIndexerScoreAhead : PagedIndexerScore<Mma::kWgmma, kBlockQ_, kStages> {
  using Base = PagedIndexerScore<Mma::kWgmma, kBlockQ_, kStages>;
  using Base::base, Base::empty, Base::full, Base::kBlockQ, Base::kDim, Base::kHeads, Base::kKeyBytes;
  using Base::kExactBelow, Base::kScalesAt, Base::kScaleBytes, Base::kScaleSlots, Base::kTokenWeightBytes;
  using Base::queries, Base::queries_empty, Base::queries_full, Base::weights;
  using typename Base::Cursor, typename Base::Tile;
  static constexpr bool kTurns = kAhead == Ahead::kTurns;
  static constexpr int kTokens = kTurns ? kBlockQ : Base::kTokens, kColumns = kTokens * kHeads;  // of a warpgroup
  static constexpr int kThreads = kTurns ? 256 : Base::kThreads;                                 // of score
  static_assert(MKTUNE_HAS_WGMMA, "wgmma exists on sm_90a only");
  static_assert(Base::kTokens == 4 || kAhead == Ahead::kPage, "halves, or turns, of four tokens");

  // Two warpgroups with as many accumulators need more registers than a CTA's threads can be given alike: the loaders
  // give some of theirs, for which they are as many threads as can, a warpgroup.
  static constexpr bool kShifts = kAhead != Ahead::kHalf && kBlockQ == 8;
  static constexpr int kLoaderThreads = kShifts ? 128 : 64;
  static constexpr int kScoreRegisters = kTurns ? 232 : 224;  // of the 168 that each thread starts with
  static constexpr int kLoaderRegisters = kTurns ? 40 : 56;

  // All threads that score, and all of the loaders' warpgroup, once the first of them has nothing else to do.
  static MKTUNE_DEVICE void take_registers() {
    if constexpr (kShifts) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kScoreRegisters));
  }
  static MKTUNE_DEVICE void give_registers() {
    if constexpr (kShifts) __syncwarp();  // one of its lanes may have loaded queries
    if constexpr (kShifts) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLoaderRegisters));
  }

  // See the base.
  template <class Begin>
  MKTUNE_DEVICE void score(Cursor cursor, const Tile& tile, int context, float* logits, i64 stride, int thread,
                           Begin begin) const {
    const int lane = thread % 32, warpgroup = kThreads == 128 ? 0 : __shfl_sync(0xffffffffu, thread / 128, 0);
    if (__any_sync(0xffffffffu, lane < tile.tokens && context < kExactBelow)) {
      if (warpgroup < Base::kThreads / 128) Base::score(cursor, tile, context, logits, stride, thread, begin);
      return;
    }
    const int first_token = kTurns ? 0 : warpgroup * kTokens, first_page = tile.first_page + (kTurns ? warpgroup : 0);
    Part part;
    part.queries = queries() + first_token * kHeads * kDim;
    part.weights = weights() + first_token * kTokenWeightBytes;
    part.thread = thread % 128;
    // Its key of a page. Of four tokens that are finished together it gets both keys of token lane % 4, of two one key of
    // token lane % 4 / 2, of one the same in pairs of lanes.
    const int further = kTogether == 4 ? 0 : kTogether == 2 ? lane % 2 : lane % 4 / 2;
    const int key = part.thread / 32 * 16 + lane / 4 + further * 8, t = first_page * kPageTokens + key;
    part.scale_at = key * 4;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int token = first_token + i * kTogether + lane % 4 / kLanesPerToken;
      const int seen = __shfl_sync(0xffffffffu, context, token) - t;
      part.logit[i] = logits + (tile.m + token) * stride + t;
      part.rest[i] = kTogether > 1 || lane % 2 == 0 ? seen : 0;
    }
    mbarrier_wait(queries_full(), cursor.tile & 1);
    part.load_weights();
    begin();
#if MKTUNE_HAS_WGMMA
    if constexpr (kAhead == Ahead::kPage)
      score_a_page_ahead(cursor, tile, part);
    else if constexpr (kTurns)
      score_in_turns(cursor, tile, part, warpgroup);
    else
      score_half_ahead(cursor, tile, part);
#endif
    if constexpr (!kTurns) hand_back<ReadBy::kLoads>(queries_empty(), thread);  // in turns nobody loads others
  }

 private:
  // Tokens of a warpgroup whose logits are finished together. After their sums over heads each lane has those of one.
  static constexpr int kTogether = kTurns ? 4 : kAhead == Ahead::kHalf ? kTokens / 2 : kTokens;
  static constexpr int kParts = kTokens / kTogether;
  static constexpr int kLanesPerToken = 4 / kTogether;

  MKTUNE_DEVICE u32 scales_in(int slot) const { return base + kScalesAt + slot * kScaleBytes; }

  // What a thread does of every page.
  struct Part {
    u32 queries, weights;   // of the warpgroup
    u32 scale_at;           // of its key, in a page's scales
    int thread;             // of the warpgroup
    int rest[kParts];       // tokens from its key on that its row sees
    float* logit[kParts];   // of its key
    float2 weight[kColumns / 8];

    template <int kPages = 1>
    MKTUNE_DEVICE void next_page() {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        rest[i] -= kPages * kPageTokens;
        logit[i] += kPages * kPageTokens;
      }
    }
    // See add_heads: of two heads the second one's weight is halved.
    MKTUNE_DEVICE float2 load_weight(int j) const {
      const float2 pair = load_shared_8(weights + j * 32 + thread % 4 * 8);
      return {pair.x, 0.5f * pair.y};
    }
    MKTUNE_DEVICE void load_weights() {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) weight[j] = load_weight(j);
    }
  };

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
  using Sums = float[2 * kTogether];

#if MKTUNE_HAS_WGMMA
  // A page's place in the ring, stepped along: less to compute than a division for each page.
  struct Place {
    int stage, slot;
    u32 phase;

    explicit MKTUNE_DEVICE Place(u32 page) : stage(page % kStages), slot(page % kScaleSlots), phase(page / kStages & 1) {}
    template <int kPages = 1>
    MKTUNE_DEVICE void step() {
      static_assert(kPages <= kStages);
      slot += slot + kPages < kScaleSlots ? kPages : kPages - kScaleSlots;
      phase ^= stage + kPages >= kStages;
      stage += stage + kPages < kStages ? kPages : kPages - kStages;
    }
  };

  // By descriptors that differ in the low half only; wait() is called when nothing but the instructions is left.
  template <int kGroups, class Wait>
  MKTUNE_DEVICE void multiply(float (&product)[kGroups][4], const Place& place, u32 queries, Wait wait) const {
    using Multiply = WarpgroupMma<Mma::kWgmma, 8 * kGroups>;
    const auto descriptor = [](u32 low) { return u64{1u << 30 | 1024 >> 4} << 32 | low; };
    const u32 a = 1 << 16 | base >> 4, b = 1 << 16 | queries >> 4;
    Multiply::fence(product);
    wait();
#pragma unroll
    for (int k = 0; k < kDim / 32; ++k)
      wgmma_k32<8 * kGroups>(product, descriptor(a + place.stage * (kKeyBytes / 16) + 2 * k), descriptor(b + 2 * k), k);
    wgmma_commit();
  }
  template <int kGroups>
  MKTUNE_DEVICE void multiply(float (&product)[kGroups][4], const Place& place, u32 queries) const {
    multiply(product, place, queries, [] {});
  }

  // NOTE: ptxas has the tensor cores wait for every product (it says so: C7514) where sums could be added up after their
  // accumulators are used again, or where a loop that is left with a product under way goes on in one way only. Sums are
  // therefore written out at once, and behind the loops stands a condition, if need be one that always holds.
  MKTUNE_DEVICE void score_a_page_ahead(Cursor cursor, const Tile& tile, Part& part) const {
    using Multiply = WarpgroupMma<Mma::kWgmma, kColumns>;
    typename Multiply::Product even, odd;
    Place next(cursor.page);
    int left = tile.pages;
    const auto begin = [&](typename Multiply::Product& product) {
      const Place place = next;
      mbarrier_wait(full(place.stage), place.phase);
      multiply(product, place, part.queries);
      next.step();
      --left;
      return place;
    };
    const auto conclude = [&](typename Multiply::Product& product, const Place& place) {
      Sums sum;
      hand_back<ReadBy::kTensorCores>(empty(place.stage), part.thread);
      add_up<0>(product, part, sum);
      finish<0>(sum, scales_in(place.slot), part);
      part.next_page();
    };
    Place of_even = begin(even);
    while (left > 1) {
      const Place of_odd = begin(odd);
      Multiply::template end<1>(even);
      conclude(even, of_even);
      of_even = begin(even);
      Multiply::template end<1>(odd);
      conclude(odd, of_odd);
    }
    if (left > 0) {
      const Place of_odd = begin(odd);
      Multiply::template end<1>(even);
      conclude(even, of_even);
      Multiply::template end<0>(odd);
      conclude(odd, of_odd);
    } else {
      Multiply::template end<0>(even);
      conclude(even, of_even);
    }
  }

  MKTUNE_DEVICE void score_half_ahead(Cursor cursor, const Tile& tile, Part& part) const {
    using Multiply = WarpgroupMma<Mma::kWgmma, kColumns / 2>;
    typename Multiply::Product first, second;
    Place place(cursor.page);
    const auto conclude_second = [&](const Place& of) {
      Sums sum;
      hand_back<ReadBy::kTensorCores>(empty(of.stage), part.thread);
      add_up<1>(second, part, sum);
      finish<1>(sum, scales_in(of.slot), part);
      part.next_page();
    };
    mbarrier_wait(full(place.stage), place.phase);
    multiply(first, place, part.queries);
    for (int left = tile.pages - 1;; --left) {
      Sums sum;
      multiply(second, place, part.queries + kColumns / 2 * kDim);
      Multiply::template end<1>(first);
      add_up<0>(first, part, sum);
      finish<0>(sum, scales_in(place.slot), part);
      if (left == 0) break;
      const Place of = place;
      place.step();
      mbarrier_wait(full(place.stage), place.phase);
      multiply(first, place, part.queries);
      Multiply::template end<1>(second);
      conclude_second(of);
    }
    if (tile.tokens > 0) {
      Multiply::template end<0>(second);
      conclude_second(place);
    } else {
      Multiply::template end<0>(second);
    }
  }

  // Pages go to the warpgroups alternately, all tokens of them, and are begun in order: who has begun a page lets the
  // other one begin the next. By then the tensor cores have work for about as long as it takes to hear of that.
  MKTUNE_DEVICE void score_in_turns(Cursor cursor, const Tile& tile, Part& part, int warpgroup) const {
    using Multiply = WarpgroupMma<Mma::kWgmma, kTogether * kHeads>;
    constexpr int kTurnBarrier = 1;  // and the next: of each warpgroup
    Place place(cursor.page + warpgroup);
    for (int page = warpgroup; page < tile.pages; page += 2) {
      typename Multiply::Product product[kParts];
      Sums sum[kParts];
      float scale[kKept];
      mbarrier_wait(full(place.stage), place.phase);
      load_scales(scale, scales_in(place.slot), part);
      multiply(product[0], place, part.queries, [&] {
        if (page > 0) named_barrier_sync(kTurnBarrier + warpgroup, kThreads);
      });
      if constexpr (kParts == 2) multiply(product[1], place, part.queries + kTogether * kHeads * kDim);
      if (page + 1 < tile.pages) named_barrier_arrive(kTurnBarrier + (warpgroup ^ 1), kThreads);
      if constexpr (kParts == 2) {
        Multiply::template end<1>(product[0]);
        add_up<0>(product[0], part, sum[0]);
      }
      Multiply::template end<0>(product[kParts - 1]);
      add_up<kParts - 1>(product[kParts - 1], part, sum[kParts - 1]);
      write<0>(sum[0], scale, part);
      if constexpr (kParts == 2) write<1>(sum[1], scale, part);
      __syncwarp();
      // For the other one as well. The scales were used, so no load of the page is under way.
      if (part.thread % 32 < Base::kThreads / 128) mbarrier_arrive(empty(place.stage));
      part.template next_page<2>();
      place.template step<2>();
    }
  }
  static MKTUNE_DEVICE void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  }
#endif

  // Eight heads of a token: a warp's 16 keys × 8, by fragments of m16n8, into the sums of the thread's two keys.
  // NOTE: a maximum takes a pipe that starts half as many instructions as that of additions, and relu would fill it. So
  // only every other one is a maximum, and the rest x + |x|: twice the relu, exactly.
  static MKTUNE_DEVICE void add_heads(const float (&product)[4], float2 weight, float* sum) {
    sum[0] = fmaf(fmaxf(product[0], 0.0f), weight.x, sum[0]);
    sum[0] = fmaf(product[1] + fabsf(product[1]), weight.y, sum[0]);
    sum[1] = fmaf(fmaxf(product[2], 0.0f), weight.x, sum[1]);
    sum[1] = fmaf(product[3] + fabsf(product[3]), weight.y, sum[1]);
  }

  // The products of a part's heads into the sums of its tokens.
  template <int kPart>
  static MKTUNE_DEVICE void add_up(const float (&product)[kTogether * kHeads / 8][4], const Part& part, Sums& sum) {
    constexpr int kGroups = kTogether * kHeads / 8;
#pragma unroll
    for (int i = 0; i < 2 * kTogether; ++i) sum[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      add_heads(product[j], part.weight[kPart * kGroups + j], sum + j / (kHeads / 8) * 2);
  }

  // Adds up over lanes, multiplies by the keys' scales and writes.
  template <int kPart>
  static MKTUNE_DEVICE void finish(Sums& sum, u32 scales, const Part& part) {
    float scale[kKept];
    load_scales(scale, scales, part);
    write<kPart>(sum, scale, part);
  }
  static constexpr int kKept = kTogether == 4 ? 2 : 1;  // sums of a lane after those over lanes
  static MKTUNE_DEVICE void load_scales(float (&scale)[kKept], u32 scales, const Part& part) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) scale[i] = load_shared_4(scales + part.scale_at + i * 32);
  }
  template <int kPart>
  static MKTUNE_DEVICE void write(Sums& sum, const float (&scale)[kKept], const Part& part) {
    add_lanes(sum, part.thread);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (part.rest[kPart] > i * 8) part.logit[kPart][i * 8] = sum[i] * scale[i];
  }

  // Adds over four neighbouring lanes. At each of the two steps a lane gives half of its sums away; a last one is kept
  // by both.
  static MKTUNE_DEVICE void add_lanes(Sums& sum, int lane) {
#pragma unroll
    for (int step = 2, count = 2 * kTogether; step > 0; step /= 2, count /= 2) {
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
