// Memory accesses of decode. The KV cache is read once with an evict-first policy, so that intermediate results stay in
// L2.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace lazy::kernels::cuda::decoding {

// L2 policy for data that is read once: its cache lines are evicted first and do not displace the scores.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Loads 16 bytes with the given L2 policy. The asm is volatile so that the compiler issues the load where this function
// is called and does not delay it until the value is used.
__device__ inline uint4 load_once(const void* from, uint64_t policy) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from), "l"(policy));
  return x;
}

// Starts an asynchronous copy of 16 bytes to shared memory; wait_for_copies waits for its completion. Writes zeros if
// `there` is false.
__device__ inline void copy_once(uint32_t to, const void* from, bool there, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0), "l"(policy)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

__device__ inline uint32_t load_word(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ inline void store_word(uint32_t to, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void store_half(uint32_t to, uint32_t x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<uint16_t>(x)) : "memory");
}

// Programmatic dependent launch: when all blocks of a kernel have called let_next_start(), the next kernel in the
// stream may start. The next kernel calls wait_for_launcher() to wait until all writes of the first kernel are visible.
__device__ inline void wait_for_launcher() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace lazy::kernels::cuda::decoding
