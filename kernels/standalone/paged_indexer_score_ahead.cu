// E1 with products always under way, as a kernel of its own: the grid, the warps and what stands before the wait are those
// of paged_indexer_score.cu. Where the loaders are a warpgroup, its other warps only give registers. A CTA has at most
// 2 · kMaxPages pages.
#include "common/diagnostics.cuh"
#include "common/launch_order.cuh"
#include "ops/paged_indexer_score_ahead.cuh"

namespace mktune {

// `key_rows` and `scale_rows` see the pool as rows of 128 bytes, 66 a page.
template <int kBlockQ, int kStages, Ahead kAhead, Gdc kGdc, Trigger kTrigger>
__global__ void __launch_bounds__(PagedIndexerScoreAhead<kBlockQ, kStages, kAhead>::kThreads +
                                  PagedIndexerScoreAhead<kBlockQ, kStages, kAhead>::kLoaderThreads)
    paged_indexer_score_ahead(const __grid_constant__ TensorMap key_rows, const __grid_constant__ TensorMap scale_rows,
                              const __grid_constant__ TensorMap query_rows, const float* w, const int* block_table,
                              const int* context_lens, float* logits, int rows, int tokens_per_request, int columns,
                              int pages_of_cta, int stride) {
  using Body = PagedIndexerScoreAhead<kBlockQ, kStages, kAhead>;
  constexpr int kPageWarp = Body::kThreads / 32, kQueryWarp = kPageWarp + 1;
  extern __shared__ __align__(1024) u8 shared[];
  const Body body{shared_address(shared)};
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int request = blockIdx.z, q = blockIdx.x * kBlockQ, first_page = blockIdx.y * pages_of_cta;
  typename Body::Tile tile{request * tokens_per_request + q, min(kBlockQ, tokens_per_request - q), first_page, 0};
  const int* table_row = block_table + static_cast<i64>(request) * columns;
  int context = 0, page_number = 0, early = 0;
  // NOTE: places are written out as {0, 0}. For {} the compiler loads zeros from memory, even before the wait.

  stamp_begin();
  trigger_at<kTrigger>(Trigger::kStart);
  if constexpr (kGdc == Gdc::kEntry) wait_for_prerequisites();

  const auto look_up = [&] {
    context = Body::load_context(context_lens, tile.m, tile.tokens, lane);
    if (warp == kPageWarp) page_number = Body::load_page_number(table_row, first_page, columns, lane);
  };
  const auto ask_for_queries = [&] {
    if (warp == kQueryWarp && elect_one()) body.load_queries({0, 0}, query_rows, w, tile.m, rows);
  };
  if constexpr (kGdc != Gdc::kPrologue) look_up();  // on its way while barriers are set up
  if (warp == kPageWarp) {
    if (elect_one()) {
      body.init_pages();
      prefetch_descriptor(key_rows);
      prefetch_descriptor(scale_rows);
    }
    __syncwarp();
  } else if (warp == kQueryWarp) {
    if (elect_one()) {
      body.init_queries();
      prefetch_descriptor(query_rows);
    }
    __syncwarp();
    if constexpr (kGdc == Gdc::kEntry) ask_for_queries();
  }
  if constexpr (kGdc != Gdc::kPrologue) {
    tile.pages = Body::visible_pages(context, first_page, pages_of_cta);
    early = min(tile.pages, kStages);
    if (warp == kPageWarp) body.load_pages({0, 0}, key_rows, scale_rows, page_number, 0, early);
  }
  __syncthreads();

  if constexpr (kGdc != Gdc::kEntry) wait_for_prerequisites();
  trigger_at<kTrigger>(Trigger::kAfterWait);
  if constexpr (kGdc != Gdc::kEntry) ask_for_queries();
  if constexpr (kGdc == Gdc::kPrologue) {
    look_up();
    tile.pages = Body::visible_pages(context, first_page, pages_of_cta);
  }

  if (warp < kPageWarp) {
    Body::take_registers();
    if (tile.pages > 0)
      body.score({0, 0}, tile, context, logits, stride, threadIdx.x, [] {
        trigger_at<kTrigger>(Trigger::kBeforeEpilogue);
        delay_before_results();
      });
  } else {
    Body::give_registers();
    if (tile.pages > 0 && warp == kPageWarp) {
      body.load_pages({0, 0}, key_rows, scale_rows, page_number, early, min(tile.pages, Body::kMaxPages));
      if (tile.pages > Body::kMaxPages) {
        page_number = Body::load_page_number(table_row, first_page + Body::kMaxPages, columns, lane);
        body.load_pages({Body::kMaxPages, 0}, key_rows, scale_rows, page_number, 0, tile.pages - Body::kMaxPages);
      }
    } else if (tile.pages == 0 && warp == kQueryWarp)
      mbarrier_wait(body.queries_full(), 0);  // no copy may outlive its CTA
  }
  stamp_end();
}

}  // namespace mktune
