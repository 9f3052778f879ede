#include "emulator.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

// `extern __shared__ char memory[]` in a kernel names a variable of the kernel's namespace.
#define LAZY_EMULATED_SHARED(type, name) alignas(128) thread_local type name[232448 / sizeof(type)]
namespace lazy::kernels::cuda::portable {
LAZY_EMULATED_SHARED(char, memory);
}
namespace lazy::kernels::cuda::plain {
LAZY_EMULATED_SHARED(float, room);
}
namespace lazy::kernels::cuda::decoding {
LAZY_EMULATED_SHARED(char, memory);
}
namespace lazy::ops::cuda::learning {
LAZY_EMULATED_SHARED(float, memory);
}
namespace lazy::ops::cuda::step {
LAZY_EMULATED_SHARED(char, memory);
}

emulated::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

namespace {

using boost::context::fiber;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, what);
  std::abort();
}

struct Copy {
  char* to;
  char bytes[16];
};

// Those who came to a collective and wait for the others.
struct Meeting {
  uint64_t held = 0;  // meetings that have taken place
  uint32_t mask = 0;  // of a warp: who is expected, who came
  uint32_t came = 0;
  int count = 0;  // of a block
  bool any = false, result = false;
  Operation operation = nullptr;
  void* slots[32];
};

std::mt19937& random() {
  static std::mt19937 engine([] {
    const char* seed = std::getenv("LAZY_EMULATOR_SEED");
    return seed ? static_cast<unsigned>(std::atoi(seed)) : 1U;
  }());
  return engine;
}

}  // namespace

struct Thread {
  Index index;
  int lane = 0;
  Meeting* warp = nullptr;
  fiber run, scheduler;
  const Meeting* waits_for = nullptr;
  uint64_t until = 0;
  std::deque<std::vector<Copy>> groups;  // committed
  std::vector<Copy> open;
  bool runnable() const { return run && (!waits_for || waits_for->held >= until); }
};

Thread* current = nullptr;
std::function<void(bool)> kernel_in_front;

namespace {

bool waited = false;
Meeting block_meeting;
int running = 0;

void wait_for(Meeting& meeting) {
  Thread* const self = current;
  self->waits_for = &meeting;
  self->until = meeting.held + 1;
  self->scheduler = std::move(self->scheduler).resume();
  self->waits_for = nullptr;
}

void hold_block_meeting() {
  block_meeting.result = block_meeting.any;
  block_meeting.any = false;
  block_meeting.count = 0;
  ++block_meeting.held;
}

void land(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.bytes, 16);
}

void run_block(const std::function<void()>& kernel) {
  static boost::context::pooled_fixedsize_stack stacks(size_t{128} << 10);
  const int count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z), warp_count = (count + 31) / 32;
  std::vector<Meeting> warps(static_cast<size_t>(warp_count));
  std::vector<Thread> threads(static_cast<size_t>(count));
  block_meeting = {};
  running = count;
  for (int n = 0; n < count; ++n) {
    Thread& t = threads[static_cast<size_t>(n)];
    const auto at = static_cast<unsigned>(n);
    t.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / blockDim.x / blockDim.y};
    t.lane = n % 32;
    t.warp = &warps[static_cast<size_t>(n / 32)];
    t.run = fiber(std::allocator_arg, stacks, [&t, &kernel](fiber&& scheduler) {
      t.scheduler = std::move(scheduler);
      kernel();
      if (--running > 0 && block_meeting.count == running) hold_block_meeting();
      return std::move(t.scheduler);
    });
  }
  std::vector<int> order(static_cast<size_t>(warp_count)), lanes(32);
  for (int n = 0; n < warp_count; ++n) order[static_cast<size_t>(n)] = n;
  for (int n = 0; n < 32; ++n) lanes[static_cast<size_t>(n)] = n;
  while (running > 0) {
    bool moved = false;
    std::shuffle(order.begin(), order.end(), random());
    std::shuffle(lanes.begin(), lanes.end(), random());
    for (int warp : order) {
      // A warp goes on until it waits for others: random lengths would only cost time.
      for (bool again = true; again;) {
        again = false;
        for (int lane : lanes) {
          const int n = warp * 32 + lane;
          if (n >= count || !threads[static_cast<size_t>(n)].runnable()) continue;
          current = &threads[static_cast<size_t>(n)];
          threadIdx = current->index;
          current->run = std::move(current->run).resume();
          again = moved = true;
        }
      }
    }
    if (!moved) fail("its threads wait for each other at different barriers, or for a thread that has ended");
  }
  current = nullptr;
}

}  // namespace

namespace {

std::array<char*, 5> shared_memories() {
  return {lazy::kernels::cuda::portable::memory, reinterpret_cast<char*>(lazy::kernels::cuda::plain::room),
          lazy::kernels::cuda::decoding::memory, lazy::ops::cuda::step::memory,
          reinterpret_cast<char*>(lazy::ops::cuda::learning::memory)};
}

}  // namespace

int lane() { return current->lane; }
char* dynamic_memory() { return lazy::kernels::cuda::portable::memory; }

void wait_for_launcher() {
  if (!std::exchange(waited, true) && kernel_in_front) kernel_in_front(true);
}

void launch(Index grid, Index block, size_t shared_bytes, const std::function<void()>& kernel) {
  if (shared_bytes > kSharedMost) fail("more shared memory than the GPU has");
  bool any_waited = false;
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        for (char* memory : shared_memories()) {
          std::memset(memory, 0xFF, shared_bytes);
          std::memset(memory + shared_bytes, 0x7B, 64);
        }
        waited = false;
        if (kernel_in_front) kernel_in_front(false);
        run_block(kernel);
        any_waited |= waited;
        for (const char* memory : shared_memories()) {
          if (std::count(memory + shared_bytes, memory + shared_bytes + 64, 0x7B) != 64) {
            fail("wrote behind its dynamic shared memory");
          }
        }
      }
    }
  }
  if (kernel_in_front && !any_waited) fail("no block waited for the kernel in front");
}

void meet_warp(uint32_t mask, void* slot, Operation operation) {
  Meeting& meeting = *current->warp;
  if (meeting.came == 0) {
    meeting.mask = mask;
    meeting.operation = operation;
  } else if (meeting.mask != mask || meeting.operation != operation) {
    fail("lanes of a warp are at different collectives");
  }
  if (!(mask >> current->lane & 1)) fail("a lane calls a collective whose mask leaves it out");
  meeting.slots[current->lane] = slot;
  meeting.came |= uint32_t{1} << current->lane;
  if (meeting.came != mask) return wait_for(meeting);
  operation(meeting.slots, mask);
  meeting.came = 0;
  ++meeting.held;
}

bool meet_block(bool value) {
  block_meeting.any |= value;
  if (++block_meeting.count < running) {
    wait_for(block_meeting);
  } else {
    hold_block_meeting();
  }
  return block_meeting.result;
}

void copy_async(char* to, const void* from, bool there) {
  Copy copy{to, {}};
  if (there) std::memcpy(copy.bytes, from, 16);
  if (random()() % 2) {
    land({copy});
  } else {
    current->open.push_back(copy);
  }
}
void commit_copies() { current->groups.push_back(std::move(current->open)); }
void wait_for_copies(int pending) {
  for (; static_cast<int>(current->groups.size()) > pending; current->groups.pop_front()) {
    land(current->groups.front());
  }
}

}  // namespace emulated
