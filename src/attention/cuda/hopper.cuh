// PTX instructions that only Hopper (sm_90a) supports: TMA copies, wgmma synchronization, register redistribution.
#pragma once
#include <cuda.h>

#include "attention/cuda/hopper_pipeline.cuh"
#include "attention/cuda/params.h"
#include "attention/cuda/wgmma.cuh"

namespace lazy::kernels::cuda {

// Starts the TMA copy of a box to shared memory. The axes of the tensor map are (dim, head, token, batch), and the last
// four arguments are the coordinates of the box on these axes.
__device__ inline void copy_box(void* to, const CUtensorMap* map, uint64_t* barrier, int dim, int head, int token,
                                int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(dim), "r"(head), "r"(token), "r"(batch)
      : "memory");
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Prevents the compiler from moving reads of the registers c before this point, and from moving the computation of
// their values after it.
template <int A>
__device__ void fence_registers(float (&c)[A]) {
#pragma unroll
  for (int n = 0; n < A; ++n) asm volatile("" : "+f"(c[n]));
}

// Forces the compiler to keep x in a register up to this point.
__device__ inline void keep_register(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ inline uint32_t exclusive_or(uint32_t x, uint32_t y) {
  uint32_t z;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

template <int registers>
__device__ void dealloc_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void alloc_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Matrix descriptor of a tile of 128-byte rows in shared memory with 128-byte swizzle, aligned to 1024 bytes. Eight
// rows occupy 1024 bytes. If the operand is transposed and has more than 64 columns, `next` is the distance in bytes to
// the next 64 columns. descriptor_base returns the lower 32 bits, which are the only ones that depend on the address.
// Callers compute the base once and add descriptor_units(bytes) to it, so that consecutive wgmma instructions need only
// one addition between them.
__device__ inline uint32_t descriptor_base(uint32_t address, uint32_t next = 16) {
  return (address & 0x3FFFF) >> 4 | (next >> 4) << 16;
}
__device__ constexpr uint32_t descriptor_units(int bytes) { return static_cast<uint32_t>(bytes) >> 4; }
__device__ inline uint64_t descriptor(uint32_t start) { return uint64_t{0x40000040} << 32 | start; }

// Matrix descriptor of core matrices (8 rows of 16 bytes) without swizzle. `inner` is the distance in bytes to the next
// core matrix along the inner axis of the product, and `outer` the distance along the other axis.
__device__ inline uint64_t core_descriptor(uint32_t address, uint32_t inner, uint32_t outer) {
  return uint64_t{outer >> 4} << 32 | descriptor_base(address, inner);
}

// Packs max(x, 0) in the lower 16 bits and max(y, 0) in the upper 16 bits. A NaN stays a NaN.
template <typename T>
__device__ uint32_t pack_positive(float x, float y) {
  uint32_t r;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  }
  return r;
}

// Makes the consumer warpgroups issue their matrix products in a fixed cyclic order, so that one warpgroup computes
// exponentials while the next warpgroup multiplies. `left` is the number of times that the warpgroup will still issue
// products. Warpgroup g waits for its turn at the named barrier g + 1.
template <int GROUPS>
struct PingPongBarrier {
  int group, left;
  __device__ void start() {
    if (left > 0 && group == GROUPS - 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
  }
  __device__ void wait() { asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }
  __device__ void pass() {
    if (--left > 0 || group < GROUPS - 1) {
      asm volatile("bar.arrive %0, 256;" ::"r"(group < GROUPS - 1 ? group + 2 : 1) : "memory");
    }
  }
};

// Stores four 8 x 8 matrices of 16-bit elements. Lane n passes the address of row n % 8 of matrix n / 8.
__device__ inline void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Returns x, which must be equal in all lanes of the warp, in a form that the compiler recognizes as warp-uniform.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// Index of the calling thread's warpgroup.
__device__ inline int warpgroup() { return uniform(threadIdx.x / 128); }

// Byte offset of 16-byte chunk c (of eight) of a row with TMA's 128-byte swizzle.
__device__ inline uint32_t swizzled(int row, int c) { return row * 128 + ((c ^ (row & 7)) * 16); }

// Creates a tensor map whose boxes have 64 dimensions of `rows` tokens of one head, with 128-byte swizzle. Elements
// outside of the tensor read as zero.
CUtensorMap tensor_map(const Params& p, const Tensor& x, int heads, int tokens, int rows);

}  // namespace lazy::kernels::cuda
