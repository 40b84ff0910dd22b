// Stands in for kernels/common/mma.cuh on the host: the same interface and accumulator layout, codes as small integers.
// An asynchronous product reads its operands at its end, the latest time at which tensor cores may.
#pragma once
#include "common/ptx.cuh"

namespace mktune {

enum class Mma { kWgmma, kMmaSync };

inline u32 transposed(u32 pair) {
  std::memcpy(&machine::exchange[machine::current], &pair, 4);
  meet_warp();
  const int lane = machine::current % 32, first = machine::current - lane;
  u32 turned = 0;
  for (int half = 0; half < 2; ++half) {
    u32 from;
    std::memcpy(&from, &machine::exchange[first + (lane % 4 * 2 + half) * 4 + lane / 4 / 2], 4);
    turned |= (from >> lane / 4 % 2 * 16 & 0xffff) << half * 16;
  }
  meet_warp();
  return turned;
}

template <int kTokens>
struct Fragments {
  float d[kTokens / 8][4];
  u32 weights, activations;
  int first, end;
  const float (&operator[](int j) const)[4] { return d[j]; }

  void multiply() {
    const int thread = machine::current % 128, lane = thread % 32;
    for (int j = 0; j < kTokens / 8; ++j)
      for (int e = 0; e < 4; ++e) {
        const u8* w = shared + weights + (thread / 32 * 16 + lane / 4 + e / 2 * 8) * 128;
        const u8* a = shared + activations + (8 * j + lane % 4 * 2 + e % 2) * 128;
        int sum = 0;
        for (int k = first * 32; k < end * 32; ++k) sum += static_cast<signed char>(w[k]) * static_cast<signed char>(a[k]);
        d[j][e] = static_cast<float>(sum);
      }
  }
};

template <Mma kMma, int kTokens>
struct WarpgroupMma;

template <int kTokens>
struct WarpgroupMma<Mma::kWgmma, kTokens> {
  static constexpr bool kAsync = true;
  using Product = Fragments<kTokens>;
  static void fence(Product&) {}
  template <int kFirst = 0, int kSteps = 4>
  static void begin(Product& product, u32 weights, u32 activations) {
    product.weights = weights;
    product.activations = activations;
    product.first = kFirst;
    product.end = kFirst + kSteps;
  }
  template <int kYounger>
  static void end(Product& product) {
    product.multiply();
  }
};

template <int kTokens>
struct WarpgroupMma<Mma::kMmaSync, kTokens> {
  static constexpr bool kAsync = false;
  using Product = Fragments<kTokens>;
  template <class Promote>
  static void run(u32 weights, u32 activations, int, Promote promote) {
    Product product{{}, weights, activations, 0, 4};
    product.multiply();
    for (int j = 0; j < kTokens / 8; ++j) promote(j, product.d[j]);
  }
};

}  // namespace mktune
