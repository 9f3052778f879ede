#include "emulator.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

// Defines the dynamic shared memory. `extern __shared__ char memory[]` in a kernel refers to the variable `memory` in
// the namespace of the kernel.
#define LAZY_EMULATED_SHARED(type, name) alignas(128) thread_local type name[emulated::kSharedStride / sizeof(type)]
namespace lazy::kernels::cuda::portable {
LAZY_EMULATED_SHARED(char, memory);
}
namespace lazy::kernels::cuda::plain {
LAZY_EMULATED_SHARED(float, room);
}
namespace lazy::kernels::cuda::decoding {
LAZY_EMULATED_SHARED(char, memory);
}
namespace lazy::ops::cuda::recurrence {
LAZY_EMULATED_SHARED(char, memory);
}
// The kernels in this namespace use clusters. Their variable contains the shared memory of all blocks of a cluster.
namespace lazy::ops::cuda::learning {
alignas(128) thread_local float memory[emulated::kMaxBlocks * emulated::kSharedStride / sizeof(float)];
}
namespace lazy::ops::cuda::step {
alignas(128) thread_local char memory[emulated::kMaxBlocks * emulated::kSharedStride];
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

struct BulkCopy {
  void* to;
  const void* from;
  size_t bytes;
  void land() const { std::memcpy(to, from, bytes); }
};

// State of a collective operation of a warp or a barrier of a block: which threads have arrived and wait for the
// others.
struct Meeting {
  uint64_t held = 0;  // number of completed operations
  uint32_t mask = 0;  // for a warp: the lanes that must arrive (not used for a block)
  uint32_t came = 0;
  int count = 0;  // for a block: the number of threads that have arrived (not used for a warp)
  bool any = false, result = false;
  std::optional<std::pair<std::string_view, unsigned>> place;  // source location at which the arrived threads wait
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

uint64_t round_of_warps = 0;

struct Block {
  Index index;
  unsigned rank = 0;  // index of the block in its cluster
  Meeting meeting, meeting_of_some;
  int running = 0;
};

struct Thread {
  Index index;
  int lane = 0;
  Block* block = nullptr;
  Meeting* warp = nullptr;
  fiber run, scheduler;
  const Meeting* waits_for = nullptr;
  uint64_t until = 0, cluster_until = 0, from_round = 0;
  std::deque<std::vector<Copy>> groups;  // groups of cp.async copies that this thread has committed
  std::vector<Copy> open;
  std::deque<std::vector<BulkCopy>> bulk_groups;
  std::vector<BulkCopy> open_bulk;
  bool runnable() const { return run && round_of_warps >= from_round && (!waits_for || waits_for->held >= until); }
};

Thread* current = nullptr;

namespace {

Meeting cluster_meeting;
int running = 0;  // number of running threads in all blocks of the cluster

void wait_for(Meeting& meeting, uint64_t until) {
  Thread* const self = current;
  self->waits_for = &meeting;
  self->until = until;
  self->scheduler = std::move(self->scheduler).resume();
  self->waits_for = nullptr;
}

void hold(Meeting& meeting) {
  meeting.result = meeting.any;
  meeting.any = false;
  meeting.count = 0;
  meeting.place.reset();
  ++meeting.held;
}

void land(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.bytes, 16);
}

// Runs the blocks of one cluster. The first block has the index blockIdx; the other blocks follow along x.
void run_cluster(unsigned blocks, const std::function<void()>& kernel) {
  static boost::context::pooled_fixedsize_stack stacks(size_t{128} << 10);
  const int block_threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z),
            block_warps = (block_threads + 31) / 32, warp_count = static_cast<int>(blocks) * block_warps;
  std::vector<Block> all(blocks);
  std::vector<Meeting> warps(static_cast<size_t>(warp_count));
  // The last warp of a block has an entry for each of its 32 lanes. Lanes beyond the number of threads are never
  // started.
  std::vector<Thread> threads(static_cast<size_t>(warp_count) * 32);
  cluster_meeting = {};
  running = static_cast<int>(blocks) * block_threads;
  for (unsigned rank = 0; rank < blocks; ++rank) {
    all[rank] = {.index = {blockIdx.x + rank, blockIdx.y, blockIdx.z}, .rank = rank, .running = block_threads};
    for (int n = 0; n < block_threads; ++n) {
      const size_t warp = rank * static_cast<size_t>(block_warps) + static_cast<size_t>(n / 32);
      Thread& t = threads[warp * 32 + static_cast<size_t>(n % 32)];
      const auto at = static_cast<unsigned>(n);
      t.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / blockDim.x / blockDim.y};
      t.lane = n % 32;
      t.block = &all[rank];
      t.warp = &warps[warp];
      t.run = fiber(std::allocator_arg, stacks, [&t, &kernel](fiber&& scheduler) {
        t.scheduler = std::move(scheduler);
        kernel();
        if (!t.open_bulk.empty() || !t.bulk_groups.empty()) fail("a thread ends without waiting for its bulk copies");
        --running;
        if (--t.block->running > 0 && t.block->meeting.count == t.block->running) hold(t.block->meeting);
        return std::move(t.scheduler);
      });
    }
  }
  std::vector<int> order(static_cast<size_t>(warp_count)), lanes(32);
  for (int n = 0; n < warp_count; ++n) order[static_cast<size_t>(n)] = n;
  for (int n = 0; n < 32; ++n) lanes[static_cast<size_t>(n)] = n;
  while (running > 0) {
    bool moved = false;
    ++round_of_warps;
    std::shuffle(order.begin(), order.end(), random());
    std::shuffle(lanes.begin(), lanes.end(), random());
    for (int warp : order) {
      // Run the warp until each of its lanes waits for other threads. Interrupting it earlier, after a random number of
      // steps, would only make the emulator slower.
      for (bool again = true; again;) {
        again = false;
        for (int lane : lanes) {
          const int n = warp * 32 + lane;
          if (!threads[static_cast<size_t>(n)].runnable()) continue;
          current = &threads[static_cast<size_t>(n)];
          threadIdx = current->index;
          blockIdx = current->block->index;
          current->run = std::move(current->run).resume();
          again = moved = true;
        }
      }
    }
    if (!moved) fail("deadlock: threads wait at different barriers, or for a thread that has ended");
  }
  current = nullptr;
}

}  // namespace

namespace {

// Returns the dynamic shared memory of every kernel. For kernels with clusters, returns one entry per block of the
// cluster.
std::vector<char*> shared_memories(unsigned cluster) {
  std::vector<char*> all = {lazy::kernels::cuda::portable::memory,
                            reinterpret_cast<char*>(lazy::kernels::cuda::plain::room),
                            lazy::kernels::cuda::decoding::memory, lazy::ops::cuda::recurrence::memory};
  for (unsigned rank = 0; rank < cluster; ++rank) {
    all.push_back(reinterpret_cast<char*>(lazy::ops::cuda::learning::memory) + rank * kSharedStride);
    all.push_back(lazy::ops::cuda::step::memory + rank * kSharedStride);
  }
  return all;
}

}  // namespace

void let_others_run() {
  Thread* const self = current;
  self->from_round = round_of_warps + 1;
  self->scheduler = std::move(self->scheduler).resume();
}

int lane() { return current->lane; }
char* dynamic_memory() { return lazy::kernels::cuda::portable::memory; }

char* own_memory(char* memory) { return memory + current->block->rank * kSharedStride; }
char* memory_of(char* own, int rank) {
  return own + (rank - static_cast<int>(current->block->rank)) * static_cast<std::ptrdiff_t>(kSharedStride);
}

void launch(Index grid, Index block, size_t shared_bytes, const std::function<void()>& kernel, unsigned cluster) {
  if (shared_bytes > static_cast<size_t>(gpu.shared_most))
    fail("the launch requests more shared memory than the GPU has");
  if (cluster > kMaxBlocks || grid.x % cluster != 0)
    fail("the grid size is not a multiple of the cluster size, or the cluster is too large");
  if (grid.y > 65535 || grid.z > 65535) fail("the grid is larger than CUDA allows");
  gridDim = grid;
  blockDim = block;
  const std::vector<char*> memories = shared_memories(cluster);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster) {
        blockIdx = {x, y, z};
        for (char* memory : memories) {
          std::memset(memory, 0xFF, shared_bytes);
          std::memset(memory + shared_bytes, 0x7B, 64);
        }
        run_cluster(cluster, kernel);
        for (const char* memory : memories) {
          if (std::count(memory + shared_bytes, memory + shared_bytes + 64, 0x7B) != 64) {
            fail("the block wrote beyond its dynamic shared memory");
          }
        }
      }
    }
  }
}

void meet_warp(uint32_t mask, void* slot, Operation operation) {
  Meeting& meeting = *current->warp;
  if (meeting.came == 0) {
    meeting.mask = mask;
    meeting.operation = operation;
  } else if (meeting.mask != mask || meeting.operation != operation) {
    fail("lanes of a warp execute different collectives");
  }
  if (!(mask >> current->lane & 1)) fail("a lane executes a collective whose mask does not include it");
  meeting.slots[current->lane] = slot;
  meeting.came |= uint32_t{1} << current->lane;
  if (meeting.came != mask) return wait_for(meeting, meeting.held + 1);
  operation(meeting.slots, mask);
  meeting.came = 0;
  ++meeting.held;
}

bool meet_block(bool value) {
  Block& block = *current->block;
  block.meeting.any |= value;
  if (++block.meeting.count < block.running) {
    wait_for(block.meeting, block.meeting.held + 1);
  } else {
    hold(block.meeting);
  }
  return block.meeting.result;
}

void named_barrier(int count, const std::source_location& place) {
  Meeting& meeting = current->block->meeting_of_some;
  const std::pair<std::string_view, unsigned> here(place.file_name(), place.line());
  if (meeting.place.value_or(here) != here) fail("threads execute the same barrier at different source locations");
  if (++meeting.count < count) {
    meeting.place = here;
    wait_for(meeting, meeting.held + 1);
  } else {
    hold(meeting);
  }
}
void arrive_threads(int count) {
  Meeting& meeting = current->block->meeting_of_some;
  if (++meeting.count == count) hold(meeting);
}

void arrive_in_cluster() {
  if (current->cluster_until > cluster_meeting.held)
    fail("a thread arrives twice at the cluster barrier without waiting");
  current->cluster_until = cluster_meeting.held + 1;
  if (++cluster_meeting.count == running) hold(cluster_meeting);
  // Simulates a delay between arriving at the barrier and waiting for it: about half of the warps, chosen at random,
  // let other warps run first.
  if (current->lane == 0 && random()() % 2) let_others_run();
}
void wait_in_cluster() {
  if (cluster_meeting.held < current->cluster_until) wait_for(cluster_meeting, current->cluster_until);
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

void copy_bulk(void* to, const void* from, size_t bytes) {
  const BulkCopy copy{to, from, bytes};
  if (random()() % 2) {
    copy.land();
  } else {
    current->open_bulk.push_back(copy);
  }
}
void commit_bulk() {
  current->bulk_groups.push_back(std::move(current->open_bulk));
  current->open_bulk.clear();
}
void wait_for_bulk(int pending) {
  for (; static_cast<int>(current->bulk_groups.size()) > pending; current->bulk_groups.pop_front()) {
    for (const BulkCopy& copy : current->bulk_groups.front()) copy.land();
  }
}

}  // namespace emulated
