// Numbers that stand for bits: Σ words × weights of each tensor, modulo 2^64. See mktune/measure/digests.py.
#include "common/ptx.cuh"

namespace mktune {

constexpr int kDigestThreads = 256;

// What a CTA reads: `bytes` of a tensor from its word `first` on, to be added to `sums[sum]`.
struct alignas(16) DigestPiece {
  u64 address, bytes, sum, first;
};

// Odd, and as good as random: SplitMix64 of the word's place in its tensor.
MKTUNE_DEVICE u64 digest_weight(u64 place) {
  u64 z = (place + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return (z ^ z >> 31) | 1;
}

// Addresses are multiples of 4. Sums of integers are the same in any order.
__global__ void __launch_bounds__(kDigestThreads) digest(const DigestPiece* pieces, u64* sums) {
  const DigestPiece piece = pieces[blockIdx.x];
  const u32* words = reinterpret_cast<const u32*>(piece.address);
  const u64 count = piece.bytes / 4, quads = piece.address % 16 ? 0 : count / 4;
  u64 sum = 0;
#pragma unroll 4
  for (u64 i = threadIdx.x; i < quads; i += kDigestThreads) {
    const uint4 four = reinterpret_cast<const uint4*>(words)[i];
    const u64 place = piece.first + 4 * i;
    sum += four.x * digest_weight(place) + four.y * digest_weight(place + 1);
    sum += four.z * digest_weight(place + 2) + four.w * digest_weight(place + 3);
  }
  for (u64 i = 4 * quads + threadIdx.x; i < count; i += kDigestThreads) sum += words[i] * digest_weight(piece.first + i);
  if (threadIdx.x == 0) {
    u64 rest = 0;  // bytes behind the last whole word
    for (u64 at = 4 * count; at < piece.bytes; ++at)
      rest |= static_cast<u64>(reinterpret_cast<const u8*>(words)[at]) << 8 * (at % 4);
    sum += rest * digest_weight(piece.first + count);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + piece.sum, sum);
}

}  // namespace mktune
