// Load instructions for data that is read only once. The loads do not allocate lines in the L1 cache, so that weights
// and tables stay there.
#pragma once
#include <cuda_runtime.h>

namespace lazy::ops::cuda {

__device__ inline void load_once(uint2& x, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
}
__device__ inline void load_once(uint4& x, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
}

}  // namespace lazy::ops::cuda
