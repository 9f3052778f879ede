// Runs CUDA kernels on the CPU, so that they are tested where there is no GPU: the .cu files are compiled as C++, with
// the headers of include/ in place of CUDA's and of those of ours that contain PTX.
//
// A block's threads are fibers of one thread. They take turns at the collectives, warps and lanes in random order, so
// that a result that depends on a missing barrier shows. Shared memory starts as NaN. A copy of cp.async lands either
// at once or when it is waited for, at random. What ends the program with a message: threads that wait for each other
// forever, lanes of a warp at different collectives, threads of a block at one named barrier in different places of the
// program, more shared memory than was asked for or than the GPU has.
// The blocks of a cluster, and of a cooperative grid, run at the same time, others one after the other. Seeds:
// LAZY_EMULATOR_SEED. Not emulated: the cost of anything, Hopper's instructions but clusters, barriers and wgmma, which
// is done at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace emulated {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

struct Thread;
extern Thread* current;
int lane();

// An A100, unless a target or a test says otherwise.
#ifndef LAZY_EMULATED_SHARED_KIB
#define LAZY_EMULATED_SHARED_KIB 163
#endif
struct Gpu {
  int major = 8;                                               // compute capability
  int ptx_version = LAZY_EMULATED_SHARED_KIB < 227 ? 80 : 90;  // that kernels are compiled to
  int shared_most = LAZY_EMULATED_SHARED_KIB << 10;            // dynamic, of a block
};
inline Gpu gpu;
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
// `count` threads of the block meet, all at one place of the program; some may arrive elsewhere, without waiting.
void meet_threads(int count, const std::source_location& place);
void arrive_threads(int count);
// For who waits for what another thread writes, which must be of this block or of its cluster.
void let_others_run();

// Of a cluster: its barrier's two halves; where this block has what a kernel finds at `memory`, of the learners' and of
// decoding steps' kernels; where the block `rank` has what this block has at `own`.
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
