// Runs CUDA kernels on the CPU, so that they are tested where there is no GPU: the .cu files are compiled as C++, with
// the headers of include/ in place of CUDA's and of those of ours that contain PTX.
//
// A block's threads are fibers of one thread. They take turns at the collectives, warps and lanes in random order, so
// that a result that depends on a missing barrier shows. Shared memory starts as NaN. A copy of cp.async lands either
// at once or when it is waited for, at random. What ends the program with a message: threads that wait for each other
// forever, lanes of a warp at different collectives, more shared memory than was asked for or than the GPU has.
// The blocks of a cluster run at the same time, others one after the other. Seeds: LAZY_EMULATOR_SEED. Not emulated:
// the cost of anything, Hopper's instructions but clusters, barriers and wgmma, which is done at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulated {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

struct Thread;
extern Thread* current;
int lane();

// Dynamic shared memory of a block: an A100's, unless a target says otherwise.
#ifndef LAZY_EMULATED_SHARED_KIB
#define LAZY_EMULATED_SHARED_KIB 163
#endif
constexpr int kSharedMost = LAZY_EMULATED_SHARED_KIB << 10;
// The compute capability whose PTX kernels are compiled to.
constexpr int kPtxVersion = LAZY_EMULATED_SHARED_KIB < 227 ? 80 : 90;
// From block to block of a cluster: more than a block has, so that what lies behind is seen to be written.
constexpr size_t kSharedStride = (227 << 10) + 128;
constexpr unsigned kMostBlocks = 8;

// Kernel launches: `kernel` is called once a thread. cluster: blocks that run at the same time.
void launch(Index grid, Index block, size_t shared_bytes, const std::function<void()>& kernel, unsigned cluster = 1);
// The block's dynamic shared memory.
char* dynamic_memory();

// All lanes of `mask` meet. `slot` is this lane's; the last to come calls operation(slots by lane, mask).
using Operation = void (*)(void* const* slots, uint32_t mask);
void meet_warp(uint32_t mask, void* slot, Operation operation);
// All threads of the block that still run meet. Returns whether any came with `value`.
bool meet_block(bool value);

// The thread goes on once ready() is true, which threads of its cluster bring about.
void wait_until(const std::function<bool()>& ready);

// Of a cluster: its barrier's two halves; where this block has what a kernel finds at `memory`; where the block `rank`
// has what this block has at `own`.
void arrive_in_cluster();
void wait_in_cluster();
char* own_memory(char* memory);
char* memory_of(char* own, int rank);

// cp.async: 16 bytes, zeros when not `there`.
void copy_async(char* to, const void* from, bool there);
void commit_copies();
void wait_for_copies(int pending);
// cp.async.bulk from shared memory, in groups: it reads either at once or when it is waited for, at random.
void copy_bulk(void* to, const void* from, size_t bytes);
void commit_bulk();
void wait_for_bulk(int pending);

}  // namespace emulated
