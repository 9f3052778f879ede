// Emulator that runs CUDA kernels on the CPU, so that they can be tested without a GPU. The .cu files are compiled as
// C++, with the headers in include/ instead of the CUDA headers and of the project's headers that contain PTX.
//
// The threads of a block are fibers of one CPU thread. They switch at collectives, with warps and lanes in random
// order, so that results that depend on a missing barrier are detected. Shared memory is initialized to NaN. A cp.async
// copy is executed at random either immediately or when it is waited for. The emulator ends the program with a message
// in the following cases: deadlocks; lanes of a warp that execute different collectives; threads of a block that
// execute the same named barrier at different source locations; accesses or requests beyond the allowed shared memory.
// The blocks of a cluster, and of a cooperative grid, run concurrently; all other blocks run in sequence.
// LAZY_EMULATOR_SEED sets the random seed. Not emulated: performance, and the Hopper instructions except clusters,
// barriers and wgmma (which completes immediately).
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

// The emulated GPU is an A100 unless a build target or a test selects another one.
#ifndef LAZY_EMULATED_SHARED_KIB
#define LAZY_EMULATED_SHARED_KIB 163
#endif
struct Gpu {
  int major = 8;                                               // major version of the compute capability
  int ptx_version = LAZY_EMULATED_SHARED_KIB < 227 ? 80 : 90;  // PTX version for which the kernels are compiled
  int shared_most = LAZY_EMULATED_SHARED_KIB << 10;            // maximum dynamic shared memory per block
};
inline Gpu gpu;
// Distance in bytes between the shared memories of the blocks of a cluster. It is larger than the memory of a block, so
// that writes beyond the memory are detected.
constexpr size_t kSharedStride = (227 << 10) + 128;
constexpr unsigned kMaxBlocks = 8;

// Launches a kernel: `kernel` is called once per thread. cluster: number of blocks per cluster; these blocks run
// concurrently.
void launch(Index grid, Index block, size_t shared_bytes, const std::function<void()>& kernel, unsigned cluster = 1);
// Returns the dynamic shared memory of the current block.
char* dynamic_memory();

// Executes a collective operation of all lanes in `mask`. `slot` is the argument of this lane. The last lane to arrive
// calls operation(slots, mask), where slots contains the arguments of all lanes.
using Operation = void (*)(void* const* slots, uint32_t mask);
void meet_warp(uint32_t mask, void* slot, Operation operation);
// Waits at a barrier of all running threads of the block. Returns whether at least one thread passed a true `value`.
bool meet_block(bool value);
// Waits at a named barrier of `count` threads of the block. All threads that wait must be at the same source location;
// other threads may arrive by arrive_threads() without waiting.
void named_barrier(int count, const std::source_location& place);
void arrive_threads(int count);
// Yields to other threads. Must be called in loops that wait for a value that another thread of the same block or
// cluster writes.
void let_others_run();

// Functions of kernels with clusters. arrive_in_cluster and wait_in_cluster are the two halves of the cluster barrier.
// own_memory returns the address, in the shared memory of the current block, of the variable that these kernels call
// `memory`. memory_of returns the address in block `rank` that corresponds to `own` in the current block.
void arrive_in_cluster();
void wait_in_cluster();
char* own_memory(char* memory);
char* memory_of(char* own, int rank);

// Emulates cp.async: copies 16 bytes, or writes zeros if `there` is false.
void copy_async(char* to, const void* from, bool there);
void commit_copies();
void wait_for_copies(int pending);
// Emulates cp.async.bulk from shared memory, with groups that are committed and waited for. The source is read at a
// random time: either immediately or when the copy is waited for.
void copy_bulk(void* to, const void* from, size_t bytes);
void commit_bulk();
void wait_for_bulk(int pending);

}  // namespace emulated
