// Two op bodies one after the other in one CTA, as a megakernel would run them: every row of A0 by all 192 threads,
// then GEMM tiles by roles that walk the same ring on and on. Weights of the first tile are fetched before A0 starts.
#include "ops/add_rmsnorm_quant.cuh"
#include "ops/qkv_a.cuh"

namespace mktune {

template <Mma kMma, int kBlockM, int kStages>
__global__ void __launch_bounds__(192, 1)
    two_bodies(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap activations,
               const __grid_constant__ TensorMap activation_scales, const float* weight_scales, const Bf16* x,
               const Bf16* residual, const Bf16* norm_w, Bf16* residual_out, Bf16* h, u8* h_q, float* h_s, Bf16* y,
               int rows) {
  using Gemm = BlockFp8Gemm<kMma, kBlockM, 64, kStages, 4, QkvA::kGroups>;
  using Body = AddRmsnormQuant<192>;
  constexpr int kTiles = QkvA::kN / 64, kGroups = QkvA::kGroups;
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ Team<192>::Scratch scratch;
  const int warp = warp_index();
  const typename Gemm::Ring ring{shared_address(shared)};
  if (warp == 4 && elect_one()) {
    ring.init_weights();
    ring.init_activations_and_empty();
    Gemm::load_weights(ring, {}, weights, blockIdx.x * 64, 0, kStages);
  }
  __syncthreads();

  const Team<192> team{static_cast<int>(threadIdx.x), 2};
  const auto norm_weights = Body::load_norm_weights(norm_w, team);
  for (int row = 0; row < rows; ++row) {
    Body::run_row<Trigger::kExit>({x, residual, norm_w, residual_out, h, h_q, h_s, rows}, row, 0, norm_weights, team,
                                  scratch);
    team.sync();
  }
  __threadfence();
  fence_async_proxy();  // h_q and h_s were written by threads and are read by the copy engine
  __syncthreads();

  RingCursor cursor{};
  const int m_tiles = (rows + kBlockM - 1) / kBlockM;
  for (int tile = blockIdx.x; tile < kTiles * m_tiles; tile += gridDim.x) {
    const int n = tile % kTiles * 64, m = tile / kTiles * kBlockM;
    if (warp == 4) {
      const int early = tile == blockIdx.x ? kStages : 0;
      if (elect_one())
        Gemm::load_weights(ring, {cursor.item + early, 0}, weights, n, early, kGroups - early);
    } else if (warp == 5) {
      if (elect_one()) Gemm::load_activations(ring, cursor, activations, activation_scales, m, 0, kGroups);
    } else {
      const auto scales = Gemm::template load_weight_scales<QkvA>(weight_scales, n, 0, kGroups, threadIdx.x % 32,
                                                                  [](const float* at) { return __ldg(at); });
      typename Gemm::Accumulator sum;
      Gemm::consume(ring, cursor, scales, 0, kGroups, sum, threadIdx.x, nullptr, 1);
      store_y<QkvA, Gemm>(sum, {m, n}, y, rows, threadIdx.x);
      Gemm::release_scales(ring, threadIdx.x);
    }
    cursor = {cursor.item + kGroups, cursor.tile + 1};
  }
}

}  // namespace mktune
