// Runs launches of C0 and D2 with schedules on the host and compares every element with a plain sum. `cases.inc` has
// the launches as Python describes them, of smaller problems. Faults are planted in the sources, to be switched on.
#include "standalone/persistent_bf16_gemm.cu"

#include "launches.hpp"

namespace {

constexpr int kPositions = 16;

struct Case {
  int rows, ctas, threads, smem;
  std::size_t partials_bytes, counters;
};

// Small whole numbers: products and their sums are exact, in any order.
void fill_values(const char* name, std::size_t count) {
  buffers[name].resize(count * 2);
  for (std::size_t i = 0; i < count; ++i)
    buffer<Bf16>(name)[i].bits = to_bf16(static_cast<float>(static_cast<int>(machine::random_bits() % 7) - 3));
}

void fill_table(const char* name) {
  buffers[name].resize(kPositions * QAbsorb::kRope / 2 * 4);
  for (int i = 0; i < kPositions * QAbsorb::kRope / 2; ++i)
    buffer<float>(name)[i] = 0.25f * static_cast<float>(machine::random_bits() % 5);
}

float value(const char* name, std::size_t at) { return bf16_low(buffer<Bf16>(name)[at].bits); }

void fill_sums(const Case& c) {
  buffers["partials"].assign(c.partials_bytes, 0xff);
  buffers["tile_counters"].assign(c.counters * 4, 0);
}

void refuse(const char* title, int row, int column) {
  std::printf("wrong: %s: row %d, column %d\n", title, row, column);
  std::exit(1);
}

void gate(const char* title, const Case& c, bool triggers, const std::function<void()>& launch) {
  buffers.clear();
  fill_values("W_g", HeadGate::kN * HeadGate::kK);
  fill_values("h", c.rows * HeadGate::kK);
  buffers["g"].assign(c.rows * HeadGate::kN * 4, 0xff);
  fill_sums(c);
  std::vector<float> right;
  for (int row = 0; row < c.rows; ++row)
    for (int column = 0; column < HeadGate::kN; ++column) {
      float sum = 0.0f;
      for (int k = 0; k < HeadGate::kK; ++k)
        sum += value("h", row * HeadGate::kK + k) * value("W_g", column * HeadGate::kK + k);
      right.push_back(sum);
    }
  replay(title, {c.ctas, c.threads, c.smem, triggers}, c.counters > 0 ? 2 : 1, launch, [&] {
    for (std::size_t i = 0; i < right.size(); ++i)
      if (buffer<float>("g")[i] != right[i]) refuse(title, i / HeadGate::kN, i % HeadGate::kN);
    compare_counters(c.counters);
    std::memset(buffers["g"].data(), 0xff, buffers["g"].size());
  });
}

float absorbed(int row, int head, int column) {
  const auto q = [&](int at) { return value("q", (row * QAbsorb::kHeads + head) * QAbsorb::kHead + at); };
  float sum = 0.0f;
  if (column < QAbsorb::kN) {
    for (int k = 0; k < QAbsorb::kNope; ++k)
      sum += q(k) * value("W_uk", (head * QAbsorb::kNope + k) * QAbsorb::kN + column);
    return sum;
  }
  const int at = column - QAbsorb::kN, pair = buffer<i64>("positions")[row] * QAbsorb::kRope / 2 + at / 2;
  const float even = q(QAbsorb::kNope + at / 2 * 2), odd = q(QAbsorb::kNope + at / 2 * 2 + 1);
  const float cos = buffer<float>("cos")[pair], sin = buffer<float>("sin")[pair];
  return at % 2 ? even * sin + odd * cos : even * cos - odd * sin;
}

void absorb(const char* title, const Case& c, bool triggers, const std::function<void()>& launch) {
  buffers.clear();
  fill_values("W_uk", QAbsorb::kHeads * QAbsorb::kNope * QAbsorb::kN);
  fill_values("q", c.rows * QAbsorb::kHeads * QAbsorb::kHead);
  fill_table("cos");
  fill_table("sin");
  buffers["positions"].resize(c.rows * 8);
  for (int row = 0; row < c.rows; ++row) buffer<i64>("positions")[row] = machine::random_bits() % kPositions;
  buffers["mla_q"].assign(c.rows * QAbsorb::kHeads * QAbsorb::kRow * 2, 0xff);
  fill_sums(c);
  std::vector<u32> right;
  for (int row = 0; row < c.rows; ++row)
    for (int head = 0; head < QAbsorb::kHeads; ++head)
      for (int column = 0; column < QAbsorb::kRow; ++column) right.push_back(to_bf16(absorbed(row, head, column)));
  replay(title, {c.ctas, c.threads, c.smem, triggers}, c.counters > 0 ? 2 : 1, launch, [&] {
    constexpr int kColumns = QAbsorb::kHeads * QAbsorb::kRow;
    for (std::size_t i = 0; i < right.size(); ++i)
      if (buffer<Bf16>("mla_q")[i].bits != right[i]) refuse(title, i / kColumns, i % kColumns);
    compare_counters(c.counters);
    std::memset(buffers["mla_q"].data(), 0xff, buffers["mla_q"].size());
  });
}

}  // namespace

// arguments: seed, number of the fault
int main(int, char** arguments) {
  machine::random_bits.seed(static_cast<u32>(std::atoi(arguments[1])));
  machine::fault = std::atoi(arguments[2]);
#include "cases.inc"
  return 0;
}
