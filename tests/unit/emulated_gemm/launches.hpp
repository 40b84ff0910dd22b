// Memory and launches of an emulated GPU: see machine.hpp. Stands behind the kernels' sources.
#pragma once
#include <map>
#include <string>

namespace {

using namespace mktune;

std::map<std::string, std::vector<u8>> buffers;

template <class T>
T* buffer(const char* name) {
  return reinterpret_cast<T*>(buffers.at(name).data());
}

struct Pointer {  // whatever a parameter points to
  const char* name;
  template <class T>
  operator T*() const {
    return buffer<T>(name);
  }
};

TensorMap map_of(const char* name, int element_bytes, int width, int height, i64 stride, int box_width, int box_height,
                 bool constant) {
  if ((height - 1) * stride + width * element_bytes > static_cast<i64>(buffers.at(name).size()))
    machine::fail("a tensor map goes beyond its buffer");
  return {buffers.at(name).data(), element_bytes, width, height, box_width, box_height, stride, !constant};
}

struct Grid {
  int ctas, threads, smem;
  bool triggers;
};

// Runs a launch again and again, its CTAs in any order, and calls `compare` behind each. `launch` makes one thread's
// call of the kernel.
void replay(const char* title, const Grid& grid, int times, const std::function<void()>& launch,
            const std::function<void()>& compare) {
  machine::grid = grid.ctas;
  for (int time = 0; time < times; ++time) {
    std::vector<int> order(grid.ctas);
    for (int i = 0; i < grid.ctas; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), machine::random_bits);
    for (const int cta : order) {
      machine::block = cta;
      std::memset(shared, 0x55, sizeof shared);
      machine::run_cta(grid.threads, launch);
      for (std::size_t i = grid.smem; i < sizeof shared; ++i)
        if (shared[i] != 0x55) machine::fail("a CTA writes beyond its shared memory");
      if (machine::triggers != (grid.triggers ? 1 : 0)) machine::fail("a CTA does not trigger as the plan says");
    }
    compare();
  }
  std::printf("right: %s\n", title);
  std::fflush(stdout);
}

void compare_counters(std::size_t counters) {
  for (std::size_t i = 0; i < counters; ++i)
    if (buffer<u32>("tile_counters")[i] != 0) machine::fail("a counter is not zero again");
}

}  // namespace
