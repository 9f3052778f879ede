// PTX instructions of the fast-weights kernels: TF32 products (sm_80 and later) and thread block clusters (sm_90 and
// later).
#pragma once
#include <cstdint>

namespace lazy::ops::cuda {

// Returns threadIdx.x. Every call reads the special register again, so that the compiler does not keep addresses that
// depend on the thread index in registers for the whole kernel.
__device__ inline int thread() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// Returns x rounded to TF32; ties are rounded away from zero.
__device__ inline uint32_t tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
// The mma instruction m16n8k8 for TF32. With i = lane / 4 and j = lane % 4, a contains the elements (i, j), (i + 8, j),
// (i, j + 4), (i + 8, j + 4), and b contains (j, i), (j + 4, i).
__device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Multiplies two pairs of fp16 numbers.
__device__ inline uint32_t multiply_halves(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}

// The maximum over the lanes of a warp.
__device__ inline uint32_t warp_max(uint32_t x) {
  uint32_t r;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x));
  return r;
}

// 1 / x with an error of at most one unit in the last place.
__device__ inline float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Prefetches the 128 bytes at x to the L2 cache.
__device__ inline void prefetch(const void* x) { asm volatile("prefetch.global.L2 [%0];" ::"l"(x)); }

// Thread block clusters require sm_90 or later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kClusters = false;
#else
constexpr bool kClusters = true;
#endif
// The barrier of all threads of a cluster, split into arrive and wait. cluster_arrive blocks until the thread's earlier
// writes to global memory are in the L2 cache. It is therefore better to issue such writes between the two calls.
__device__ inline void cluster_arrive() {
  if constexpr (kClusters) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  if constexpr (kClusters) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Bulk copies from shared to global memory, both aligned to 16 bytes. After its writes to shared memory, every thread
// must execute the fence, followed by a block barrier. One thread then issues the copy, and the same thread waits until
// the copy has read the shared memory.
__device__ inline void fence_for_bulk_copies() {
  if constexpr (kClusters) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void copy_bulk(void* to, const void* from, uint32_t bytes) {
  if constexpr (kClusters) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
}
__device__ inline void wait_for_bulk_reads() {
  if constexpr (kClusters) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Returns the dynamic shared memory of a kernel. The CPU emulator that runs the kernels in tests replaces this
// function, because it must select the memory of the emulated block.
template <typename X>
__device__ X* own_memory(X* memory) {
  return memory;
}
// Returns the address in the shared memory of block `rank` of the cluster that corresponds to `own` in this block.
template <typename X>
__device__ X* of_block(X* own, int rank) {
  if constexpr (kClusters) asm("mapa.u64 %0, %0, %1;" : "+l"(own) : "r"(rank));
  return own;
}

}  // namespace lazy::ops::cuda
