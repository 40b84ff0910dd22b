// Runs launches of GEMM kernels on the host and compares every element with a plain sum. `cases.inc` has the launches as
// Python describes them: the kernels' sources are the real ones but for ptx.cuh and mma.cuh.
#include "standalone/persistent_gemm.cu"

#include "launches.hpp"

namespace mktune {
#include "problems.inc"
}

namespace {

using namespace mktune;

struct Case {
  int rows, n, k, ctas, threads, smem, sums;  // sums: fp32 slabs that somebody adds up; 0: the result is bf16
  std::size_t partials_bytes, counters;
};

std::vector<float> weight_scales, row_scales;  // [blocks, groups] and [groups, padded rows]

// Scales as the kernels of this build read them: fp32, or words of four exponents.
void store_scales(const Case& c, int blocks, int groups, int padded) {
  const int words = (groups + 3) / 4, elements = kPackedScales ? words * c.n : blocks * groups;
  buffers["weight_scales"].assign(elements * 4, 0);
  buffers["row_scales"].assign((kPackedScales ? words : groups) * padded * 4, 0);
  const auto put = [](const char* name, int line, int at, int of, float scale) {  // [lines, of]
    if (kPackedScales)
      buffers[name][(line / 4 * of + at) * 4 + line % 4] = static_cast<u8>(__float_as_uint(scale) >> 23);
    else
      buffer<float>(name)[line * of + at] = scale;
  };
  for (int g = 0; g < groups; ++g) {
    for (int row = 0; row < padded; ++row) put("row_scales", g, row, padded, row_scales[g * padded + row]);
    if (kPackedScales)
      for (int n = 0; n < c.n; ++n) put("weight_scales", g, n, c.n, weight_scales[n / 128 * groups + g]);
    else
      for (int b = 0; b < blocks; ++b) put("weight_scales", b, g, groups, weight_scales[b * groups + g]);
  }
}

void fill(const Case& c) {
  const int groups = c.k / 128, padded = (c.rows + 3) / 4 * 4, blocks = (c.n + 127) / 128;
  buffers.clear();
  const auto codes = [&](const char* name, int rows) {
    auto& made = buffers[name];
    made.resize(static_cast<std::size_t>(rows) * c.k);
    for (u8& code : made) code = static_cast<u8>(static_cast<int>(machine::random_bits() % 7) - 3);
  };
  const auto scales = [&](std::vector<float>& made, int count) {
    made.resize(count);
    for (float& scale : made) scale = 0.5f * static_cast<float>(1 << machine::random_bits() % 3);
  };
  codes("weights", c.n);
  codes("codes", c.rows);
  scales(weight_scales, blocks * groups);
  scales(row_scales, groups * padded);
  store_scales(c, blocks, groups, padded);
  buffers["out"].assign(static_cast<std::size_t>(c.rows) * c.n * 2, 0xff);
  buffers["partials"].assign(c.partials_bytes, 0xff);
  buffers["tile_counters"].assign(c.counters * 4, 0);
}

std::vector<float> expected(const Case& c) {
  const int groups = c.k / 128, padded = (c.rows + 3) / 4 * 4;
  const auto *weights = buffer<signed char>("weights"), *codes = buffer<signed char>("codes");
  std::vector<float> sums;
  for (int row = 0; row < c.rows; ++row)
    for (int column = 0; column < c.n; ++column) {
      float sum = 0.0f;
      for (int g = 0; g < groups; ++g) {
        int product = 0;
        for (int k = g * 128; k < (g + 1) * 128; ++k) product += weights[column * c.k + k] * codes[row * c.k + k];
        sum += product * weight_scales[column / 128 * groups + g] * row_scales[g * padded + row];
      }
      sums.push_back(sum);  // exact: whole quarters far below 2^24
    }
  return sums;
}

void compare(const Case& c, const char* title, const std::vector<float>& right) {
  const float* partials = buffer<float>("partials");
  const Bf16* out = buffer<Bf16>("out");
  for (int row = 0; row < c.rows; ++row)
    for (int column = 0; column < c.n; ++column) {
      const int at = row * c.n + column;
      float sum = 0.0f;
      for (int s = 0; s < c.sums; ++s) sum += partials[static_cast<i64>(s) * c.rows * c.n + at];
      const bool same = c.sums ? sum == right[at] : out[at].bits == to_bf16(right[at]);
      if (!same) {
        std::printf("wrong: %s: row %d, column %d\n", title, row, column);
        std::exit(1);
      }
    }
  compare_counters(c.counters);
}

void run(const char* title, const Case& c, bool triggers, int replays, const std::function<void()>& launch) {
  fill(c);
  const std::vector<float> right = expected(c);
  replay(title, {c.ctas, c.threads, c.smem, triggers}, replays, launch, [&] { compare(c, title, right); });
}

}  // namespace

int main(int, char** arguments) {
  machine::random_bits.seed(static_cast<u32>(std::atoi(arguments[1])));
#include "cases.inc"
  return 0;
}
