// One CTA of a GPU on the host: its threads are fibers that give way where they block, in an order that a seed decides.
// Copies by the copy engine land late and out of order. Warps have speeds of their own, so that roles get far apart.
#pragma once
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

namespace machine {

[[noreturn]] inline void fail(const char* what) {
  std::printf("wrong: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);  // a fiber must not destroy what it stands on
}

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  std::function<bool()> ready;  // empty: it can go on
  bool done = false;
  int waits = 0;
};

struct Barrier {  // an mbarrier
  int arrivals = 0, pending = 0;
  i64 bytes = 0;
  u32 phase = 0;
  void settle() {
    if (pending == 0 && bytes == 0) {
      ++phase;
      pending = arrivals;
    }
  }
};

struct Meeting {  // of threads that all have to come
  int came = 0;
  u32 generation = 0;
};

constexpr int kSharedBytes = 256 * 1024, kStack = 96 * 1024, kThreads = 1024;
inline int block = 0, grid = 0;
inline std::mt19937 random_bits;
inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline int current = 0;
inline std::vector<std::function<void()>> copies;  // under way
inline std::vector<Barrier> barriers(kSharedBytes / 8);
inline Meeting whole_cta, named[16], warps[kThreads / 32];
inline u64 exchange[kThreads];
inline int triggers = 0;
inline int fault = 0;  // of those that a test has planted
inline i64 asked_bytes = 0, landed_bytes = 0;
inline u64 l2_boxes = 0;

inline void block_until(std::function<bool()> ready) {
  if (ready()) return;
  fibers[current].ready = std::move(ready);
  swapcontext(&fibers[current].context, &scheduler);
}

inline void meet(Meeting& meeting, int threads) {
  const u32 mine = meeting.generation;
  if (++meeting.came == threads) {
    meeting.came = 0;
    ++meeting.generation;
  } else {
    block_until([&meeting, mine] { return meeting.generation != mine; });
  }
}

inline std::function<void()> body;
inline void enter() {
  body();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}

// Runs `kernel` by `threads` threads to the end. Fails where they wait for one another for ever.
inline void run_cta(int threads, std::function<void()> kernel) {
  body = std::move(kernel);
  fibers = std::vector<Fiber>(threads);
  for (auto& barrier : barriers) barrier = {};
  whole_cta = {};
  for (auto& meeting : named) meeting = {};
  for (auto& meeting : warps) meeting = {};
  triggers = 0;
  asked_bytes = landed_bytes = 0;
  for (Fiber& fiber : fibers) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(kStack);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  std::vector<u32> speed(threads / 32 + 1);  // of warps, then of copies, of 8
  for (u32& of : speed) of = 1 + random_bits() % 8;
  for (bool left = true; left;) {
    left = false;
    bool moved = false, held = false;
    for (int warp = 0; warp < threads / 32; ++warp) {
      const bool runs = random_bits() % 8 < speed[warp];
      for (int lane = 0; lane < 32; ++lane) {
        Fiber& fiber = fibers[warp * 32 + lane];
        if (fiber.done) continue;
        left = true;
        if (fiber.ready && !fiber.ready()) continue;
        held = true;
        if (!runs) continue;
        fiber.ready = nullptr;
        current = warp * 32 + lane;
        swapcontext(&scheduler, &fiber.context);
        moved = true;
      }
    }
    for (std::size_t i = 0; i < copies.size();) {
      if (random_bits() % 8 < speed.back()) {
        std::swap(copies[i], copies.back());
        copies.back()();
        copies.pop_back();
        moved = true;
      } else {
        ++i;
      }
    }
    if (left && !moved && !held && copies.empty()) fail("threads wait for one another for ever");
  }
  if (!copies.empty() || asked_bytes != landed_bytes) fail("the CTA ended before its copies");
  for (const Fiber& fiber : fibers)
    if (fiber.waits != 1) fail("not every thread executed the wait once");
}

}  // namespace machine
