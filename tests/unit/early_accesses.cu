// Kernels that touch memory before their wait, each in one way that must be seen in the machine code: those that must be
// refused, then those that are right. Parameters: weights and table are constant while a graph runs, produced is not.
#include "common/ptx.cuh"

namespace mktune {

MKTUNE_DEVICE float load(const float* source) { return load_produced_4(source); }
MKTUNE_DEVICE int lane() { return static_cast<int>(threadIdx.x) % 32; }

// ---- must be refused ---------------------------------------------------------------------------------------------
__global__ void direct(const float* weights, const float* produced, float* out) {
  const float early = load(produced + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = early + load(weights + threadIdx.x);
}

// The address itself stands in a constant table; nobody knows what it points to.
__global__ void through_a_pointer(const float* const* table, float* out) {
  const uint2 bits = load_constant_8(table + threadIdx.x);
  const float early = load(reinterpret_cast<const float*>(static_cast<u64>(bits.y) << 32 | bits.x));
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

__global__ void through_a_pointer_and_a_stride(const float* const* table, float* out, i64 stride) {
  const uint2 bits = load_constant_8(table + blockIdx.x);
  const float* row = reinterpret_cast<const float*>(static_cast<u64>(bits.y) << 32 | bits.x);
  const float early = load(row + threadIdx.x * stride);
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

// On one path a constant tensor, on another what a table names.
__global__ void weights_or_a_pointer(const float* weights, const float* const* table, float* out, int n) {
  const float* source = weights;
  if (static_cast<int>(blockIdx.x) < n) {
    const uint2 bits = load_constant_8(table);
    source = reinterpret_cast<const float*>(static_cast<u64>(bits.y) << 32 | bits.x);
  }
  const float early = load(source + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

__global__ void map_of_produced(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap produced,
                                float* out) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ __align__(8) u64 barrier;
  const u32 at = shared_address(shared), full = shared_address(&barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_expect(full, 2 * 8192);
    copy_tensor(at, weights, 0, blockIdx.x, full);
    copy_tensor(at + 8192, produced, 0, blockIdx.x, full);
  }
  __syncthreads();
  wait_for_prerequisites();
  mbarrier_wait(full, 0);
  out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x];
}

// Which map, only the block knows.
__global__ void one_of_two_maps(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap produced,
                                float* out) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ __align__(8) u64 barrier;
  const u32 at = shared_address(shared), full = shared_address(&barrier);
  const TensorMap& map = blockIdx.x % 2 ? weights : produced;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_expect(full, 8192);
    copy_tensor(at, map, 0, blockIdx.x, full);
  }
  __syncthreads();
  wait_for_prerequisites();
  mbarrier_wait(full, 0);
  out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x];
}

__global__ void bulk_copy(const float* weights, const float* produced, float* out) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ __align__(8) u64 barrier;
  const u32 full = shared_address(&barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_expect(full, 1024);
    copy_bytes(shared_address(shared), produced, 1024, full);
  }
  __syncthreads();
  wait_for_prerequisites();
  mbarrier_wait(full, 0);
  out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x] + load(weights);
}

// Warp 0 waits at once; warp 1 loads first. Both wait in the end.
__global__ void in_one_warp_only(const float* weights, const float* produced, float* out) {
  __shared__ float early[64];
  if (warp_index() == 0) {
    early[threadIdx.x] = load(weights + lane());
    wait_for_prerequisites();
  } else {
    early[threadIdx.x] = load(produced + lane());
    wait_for_prerequisites();
  }
  __syncthreads();
  out[threadIdx.x] = early[threadIdx.x ^ 32];
}

// The first turns read weights, the last one does not.
__global__ void in_a_loop(const float* weights, const float* produced, float* out, int n) {
  float sum = 0.0f;
  const float* source = weights;
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    sum += load(source + i * 128 + threadIdx.x);
    if (i == n - 2) source = produced;
  }
  wait_for_prerequisites();
  out[threadIdx.x] = sum;
}

__global__ void behind_a_branch(const float* weights, const float* produced, float* out, int n) {
  float early = load(weights + threadIdx.x);
  if (static_cast<int>(blockIdx.x) > n) early += load(produced + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

// Some threads never wait, and all go on.
__global__ void a_wait_that_is_skipped(const float* produced, float* out, int n) {
  if (static_cast<int>(threadIdx.x) < n) wait_for_prerequisites();
  out[threadIdx.x] = load(produced + threadIdx.x);
}

// Right by a CTA barrier, but a wait counts only in its own thread: refused, to be safe.
__global__ void the_wait_of_another_thread(const float* produced, float* out) {
  if (threadIdx.x == 0) wait_for_prerequisites();
  __syncthreads();
  out[threadIdx.x] = load(produced + threadIdx.x);
}

__global__ void store(float* out) {
  out[threadIdx.x] = 0.0f;
  wait_for_prerequisites();
}

__global__ void count(u32* counter) {
  atomicAdd(counter, 1u);
  wait_for_prerequisites();
}

__device__ __noinline__ float called(const float* source) { return load(source) + load(source + 32); }
__global__ void in_a_function(const float* produced, float* out) {
  const float early = called(produced + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

// An index that was computed from produced data reads outside what is constant, or stale.
__global__ void index_of_produced(const float* weights, const int* produced, float* out) {
  const int index = __float_as_int(load(reinterpret_cast<const float*>(produced + threadIdx.x)));
  const float early = load(weights + index);
  wait_for_prerequisites();
  out[threadIdx.x] = early;
}

// ---- right -------------------------------------------------------------------------------------------------------
__global__ void at_entry(const float* weights, const float* produced, float* out) {
  wait_for_prerequisites();
  out[threadIdx.x] = load(weights + threadIdx.x) + load(produced + threadIdx.x);
}

__global__ void constants_first(const float* weights, const float* produced, float* out, int n) {
  launch_dependents();
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += load(weights + i * 128 + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = sum + load(produced + threadIdx.x);
}

__global__ void index_of_a_table(const float* weights, const int* table, float* out) {
  const int index = __float_as_int(load(reinterpret_cast<const float*>(table + threadIdx.x)));
  const float early = load(weights + index);
  wait_for_prerequisites();
  launch_dependents();
  out[threadIdx.x] = early;
}

__global__ void one_of_two_constants(const float* weights, const float* table, const float* produced, float* out, int n) {
  const float* source = static_cast<int>(blockIdx.x) < n ? weights : table;
  const float early = load(source + threadIdx.x);
  wait_for_prerequisites();
  out[threadIdx.x] = early + load(produced + threadIdx.x);
}

__global__ void both_arms_wait(const float* weights, const float* produced, float* out) {
  __shared__ float early[64];
  if (warp_index() == 0) {
    early[threadIdx.x] = load(weights + lane());
    wait_for_prerequisites();
  } else {
    wait_for_prerequisites();
    early[threadIdx.x] = 0.0f;
  }
  __syncthreads();
  out[threadIdx.x] = early[threadIdx.x] + load(produced + threadIdx.x);
}

__global__ void map_of_weights(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap produced,
                               float* out) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ __align__(8) u64 barrier[2];
  const u32 at = shared_address(shared), full = shared_address(barrier);
  const int warp = warp_index();
  if (warp == 0 && elect_one()) {
    mbarrier_init(full, 1);
    mbarrier_init(full + 8, 1);
    fence_mbarrier_init();
    mbarrier_expect(full, 8192);
    copy_tensor(at, weights, 0, blockIdx.x, full);
  }
  __syncthreads();
  wait_for_prerequisites();
  if (warp == 1 && elect_one()) {
    mbarrier_expect(full + 8, 8192);
    copy_tensor(at + 8192, produced, 0, blockIdx.x, full + 8);
  }
  mbarrier_wait(full, 0);
  mbarrier_wait(full + 8, 0);
  launch_dependents();
  out[threadIdx.x] = reinterpret_cast<const float*>(shared)[threadIdx.x];
}

// Registers do not hold an array that is indexed by what only the GPU knows.
__global__ void local_memory(const float* weights, float* out, int n) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = load(weights + i * 32 + threadIdx.x);
  wait_for_prerequisites();
  for (int i = 0; i < n; ++i) values[(i * i) % 16] += values[i % 16];
  out[threadIdx.x] = values[n % 16];
}

}  // namespace mktune
