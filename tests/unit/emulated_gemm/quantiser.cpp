// What a quantiser of this build makes of every bf16 peak, as bits of its scale and of the reciprocal; then its scales of
// 7 rows and 48 groups as they are stored, over poison. Group g of row r has peak 448 * 2^((7 * g + r) % 41 - 20).
#include "common/ptx.cuh"
using std::max;
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
#include "common/quant.cuh"

int main() {
  using namespace mktune;
  const auto put = [](u32 bits) { std::fwrite(&bits, 4, 1, stdout); };
  for (u32 peak = 0; peak < 0x7f80; ++peak) {
    const QuantScale scale = row_scale(__uint_as_float(peak << 16));
    put(__float_as_uint(scale.value));
    put(__float_as_uint(scale.reciprocal));
  }
  constexpr int kRows = 7, kGroups = 48, kPadded = 8;
  std::vector<StoredScale> stored(kPackedScales ? kGroups / 4 * kPadded : kGroups * kPadded);
  std::memset(stored.data(), 0xff, stored.size() * 4);
  for (int row = 0; row < kRows; ++row)
    for (int group = 0; group < kGroups; ++group)
      store_row_scale(stored.data(), group, kPadded, row, row_scale(std::ldexp(448.0f, (7 * group + row) % 41 - 20)));
  for (int rank = 0; rank < 32; ++rank) clear_padding_scales<kGroups>(stored.data(), kRows, rank, 32);
  std::fwrite(stored.data(), 4, stored.size(), stdout);
}
