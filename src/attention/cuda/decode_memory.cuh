// Memory accesses of decode: the KV cache is read once and evicted first, intermediate results stay in L2.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace lazy::kernels::cuda::decoding {

// Lines that leave the second-level cache first: they must not drive out the scores.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// volatile: issued where it stands, well before its use.
__device__ inline uint4 load_once(const void* from, uint64_t policy) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from), "l"(policy));
  return x;
}

// 16 bytes to shared memory, in flight until wait_for_copies; zeros for `bytes` 0.
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

// Programmatic dependent launch: a kernel that was launched early waits here for the writes of the kernel before it,
// which allows the early start.
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
