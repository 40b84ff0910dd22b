// What DeepGEMM's paged scores take beside E1's own inputs. It scores groups of one or two tokens, each with a row of
// the block table and a length of its own, and is told where each of its CTAs begins: `schedule` [kCtas + 1] holds
// (group, split of 256 cached tokens), the last of which is the end.
//
// The first CTA makes the schedule, each other one a group's length and row. A group is as long as its longest token.
// Before the wait, with gdc = prologue: context lengths (an argument that nothing in a graph writes).
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"

namespace mktune {

template <int kGroupTokens, int kCtas>
struct PagedScoreSchedule {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kSplit = 256, kPage = 64;
  static_assert(kCtas < kThreads, "a thread for each CTA, and one for the end");

  static MKTUNE_DEVICE int load_length(const int* context_lens, int group, int groups) {
    int longest = 0;
    if (group < groups)
#pragma unroll
      for (int i = 0; i < kGroupTokens; ++i) longest = max(longest, load_length(context_lens + group * kGroupTokens + i));
    return longest;
  }

  // Splits of the groups up to each thread's own, in `sums` [kThreads]. Run by all threads.
  static MKTUNE_DEVICE void add_up(int splits, int* sums, int* warp_sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = splits;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    for (int before = 0; before < warp; ++before) sum += warp_sums[before];
    sums[threadIdx.x] = sum;
    __syncthreads();
  }

  // Where CTA `cta` begins: every CTA gets as many splits as another or one more, the later ones first.
  static MKTUNE_DEVICE int2 start_of(int cta, const int* sums, int groups) {
    if (cta == kCtas) return {groups, 0};
    const int each = sums[groups - 1] / kCtas, more = sums[groups - 1] % kCtas;
    const int first = cta * each + max(0, cta - (kCtas - more));
    int low = 0, high = groups;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sums[middle] <= first)
        low = middle + 1;
      else
        high = middle;
    }
    return {low, low == 0 ? first : first - sums[low - 1]};
  }

 private:
  static MKTUNE_DEVICE int load_length(const int* source) {
    int v;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(source));
    return v;
  }
};

// `block_table` is [requests, columns], `context_lens` [tokens]; `lens` [groups] and `tables` [groups, columns].
template <int kGroupTokens, int kCtas, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(256)
    paged_score_schedule(const int* block_table, const int* context_lens, int* lens, int* tables, int2* schedule,
                         int groups, int groups_per_request, int columns) {
  static_assert(kGdc != Gdc::kPrefetch, "there are no weights to prefetch");
  using Body = PagedScoreSchedule<kGroupTokens, kCtas>;
  __shared__ int sums[Body::kThreads], warp_sums[Body::kWarps];
  const int thread = threadIdx.x, own = static_cast<int>(blockIdx.x) - 1;

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  int length;
  if constexpr (kGdc == Gdc::kPrologue) length = Body::load_length(context_lens, own < 0 ? thread : own, groups);
  wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc == Gdc::kEntry) length = Body::load_length(context_lens, own < 0 ? thread : own, groups);

  delay_before_results();
  if (own < 0) {
    Body::add_up((length + Body::kSplit - 1) / Body::kSplit, sums, warp_sums);
    if (thread <= kCtas) schedule[thread] = Body::start_of(thread, sums, groups);
  } else {
    const int* source = block_table + static_cast<i64>(own / groups_per_request) * columns;
    int* target = tables + static_cast<i64>(own) * columns;
    const int pages = (length + Body::kPage - 1) / Body::kPage;
    for (int page = thread; page < pages; page += Body::kThreads) target[page] = source[page];
    if (thread == 0) lens[own] = length;
  }
  stamp_end();
}

}  // namespace mktune
