// PTX instructions of Hopper (sm_90): mbarriers in shared memory that count bytes, and asynchronous copies that signal
// such a barrier when they complete.
#pragma once
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda {

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ inline void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives at the barrier when all previous copy_async calls of the thread have completed. This counts as one of the
// barrier's arrivals.
__device__ inline void barrier_arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Makes initialized barriers visible to other threads and to asynchronous copies. The thread that called barrier_init
// must call this function before other threads use the barriers.
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Starts a bulk copy of contiguous bytes to shared memory. `bytes` must be a multiple of 16.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// Prefetches contiguous bytes to L2. `bytes` must be a multiple of 16.
__device__ inline void prefetch_bytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace lazy::kernels::cuda
