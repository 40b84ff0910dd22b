// Stands in for kernels/common/wgmma_bf16.cuh on the host, and for the instructions of bf16 products by mma.sync: the
// same fragments, rows of 128 bytes without a swizzle. Asynchronous products read their operands when they are awaited.
#pragma once
#include <deque>

#include "common/mma.cuh"

#define MKTUNE_HAS_WGMMA 1

namespace mktune {

enum class Major { kK, kN };

inline float value_at(u32 address) {
  unsigned short bits;
  std::memcpy(&bits, shared + address, 2);
  return __uint_as_float(static_cast<u32>(bits) << 16);
}

// ---- wgmma ----------------------------------------------------------------------------------------------------------
struct PendingProduct {  // one thread's fragment
  float (*d)[4];
  int token_groups, group;
  bool n_major;
  u32 weights, activations;

  void multiply() const {
    const int thread = machine::current % 128, lane = thread % 32;
    for (int j = 0; j < token_groups; ++j)
      for (int e = 0; e < 4; ++e) {
        const u32 column = thread / 32 * 16 + lane / 4 + e / 2 * 8, token = 8 * j + lane % 4 * 2 + e % 2;
        for (u32 k = 0; k < 16; ++k)
          d[j][e] += value_at(weights + (n_major ? k * 128 + column * 2 : column * 128 + k * 2)) *
                     value_at(activations + token * 128 + k * 2);
      }
  }
};
inline std::deque<PendingProduct> pending[machine::kThreads];
inline int committed[machine::kThreads];  // groups

inline u64 wgmma_descriptor(u32 address) {
  if (address % 1024 != 0) machine::fail("a tile is not where the swizzle begins");
  return address >> 4;
}
template <class Sums>
void wgmma_hold(Sums&) {}
inline void wgmma_fence() {}
inline void wgmma_commit() { ++committed[machine::current]; }
template <int kTokens, Major kWeights>
void wgmma_k16(float (&d)[kTokens / 8][4], u64 weights, u64 activations) {
  pending[machine::current].push_back({d, kTokens / 8, committed[machine::current], kWeights == Major::kN,
                                       static_cast<u32>(weights << 4), static_cast<u32>(activations << 4)});
}
template <int kYounger>
void wgmma_wait() {
  auto& mine = pending[machine::current];
  for (; !mine.empty() && mine.front().group < committed[machine::current] - kYounger; mine.pop_front())
    mine.front().multiply();
}

// ---- matrices of 8 × 8 values of 16 bits ----------------------------------------------------------------------------
inline u32 posted[machine::kThreads][8];  // what lanes show each other

template <class Post, class Read>
void among_lanes(Post post, Read read) {
  const int lane = machine::current % 32;
  post(posted[machine::current]);
  meet_warp();
  read(posted + (machine::current - lane), lane);
  meet_warp();
}

// ldmatrix: lane i names the row i % 8 of matrix i / 8.
inline uint4 matrices(u32 row_address, bool transposed) {
  u32 found[4];
  among_lanes([&](u32* mine) { mine[0] = row_address; },
              [&](u32 (*all)[8], int lane) {
                for (int matrix = 0; matrix < 4; ++matrix) {
                  unsigned short pair[2];
                  for (int half = 0; half < 2; ++half) {
                    const int inner = lane % 4 * 2 + half, outer = lane / 4;
                    const int row = transposed ? inner : outer, column = transposed ? outer : inner;
                    std::memcpy(&pair[half], shared + all[matrix * 8 + row][0] + column * 2, 2);
                  }
                  found[matrix] = pair[0] | static_cast<u32>(pair[1]) << 16;
                }
              });
  return {found[0], found[1], found[2], found[3]};
}
inline uint4 load_matrices(u32 row_address) { return matrices(row_address, false); }
inline u32 swizzled(u32 tile, int row, int chunk) { return tile + row * 128 + chunk * 16; }

// stmatrix.x2.trans: lane i of the first 16 names the row i % 8 of matrix i / 8.
inline void store_two_matrices_transposed(u32 row_address, u32 first, u32 second) {
  among_lanes(
      [&](u32* mine) {
        mine[0] = row_address;
        mine[1] = first;
        mine[2] = second;
      },
      [](u32 (*all)[8], int lane) {
        if (lane >= 16) return;
        for (int column = 0; column < 8; ++column) {
          const int row = lane % 8;
          const unsigned short value = all[column * 4 + row / 2][1 + lane / 8] >> row % 2 * 16;
          std::memcpy(shared + all[lane][0] + column * 2, &value, 2);
        }
      });
}

// mma.sync m16n8k16.
inline void multiply_16_8_16(float (&d)[4], uint4 a, u32 b0, u32 b1) {
  among_lanes(
      [&](u32* mine) {
        const u32 all[6] = {a.x, a.y, a.z, a.w, b0, b1};
        std::memcpy(mine, all, sizeof all);
      },
      [&](u32 (*all)[8], int lane) {
        const auto half = [](u32 pair, int k) { return k % 2 ? bf16_high(pair) : bf16_low(pair); };
        for (int e = 0; e < 4; ++e)
          for (int k = 0; k < 16; ++k)
            d[e] += half(all[lane / 4 * 4 + k % 8 / 2][e / 2 + k / 8 * 2], k) *
                    half(all[(lane % 4 * 2 + e % 2) * 4 + k % 8 / 2][4 + k / 8], k);
      });
}

}  // namespace mktune
