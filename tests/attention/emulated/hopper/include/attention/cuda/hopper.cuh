// Replaces src/attention/cuda/hopper.cuh in the CPU emulator that runs CUDA kernels in tests. It contains the functions
// that src/ops uses, without PTX.
#pragma once
#include "attention/cuda/hopper_pipeline.cuh"

namespace lazy::kernels::cuda {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int pending>
void wgmma_wait() {}
template <int registers>
void dealloc_registers() {}
template <int registers>
void alloc_registers() {}
template <int A>
void fence_registers(float (&)[A]) {}
inline void keep_register(uint32_t&) {}
inline uint32_t exclusive_or(uint32_t x, uint32_t y) { return x ^ y; }

// Emulated matrix descriptor of wgmma. It contains the address, and the distances in bytes between neighboring core
// matrices along the two axes, divided by 16.
inline uint64_t core_descriptor(uint32_t address, uint32_t inner, uint32_t outer) {
  return uint64_t{address} | uint64_t{inner >> 4} << 32 | uint64_t{outer >> 4} << 48;
}
// Computes c = a b, or c += a b if `accumulate` is set. b is the core_descriptor of the second operand.
template <typename T, int TRANSPOSED, int A>
void wgmma(float (&c)[A], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  static_assert(!TRANSPOSED);
  const auto address = static_cast<uint32_t>(b), inner = static_cast<uint32_t>(b >> 32 & 0xFFFF) << 4,
             outer = static_cast<uint32_t>(b >> 48) << 4;
  for (int n = 0; n < A / 4; ++n) {
    float sum[4];
    for (int e = 0; e < 4; ++e) sum[e] = accumulate ? c[4 * n + e] : 0;
    uint32_t x[2];
    for (uint32_t i = 0; i < 2; ++i) {
      std::memcpy(&x[i],
                  at_address(address + static_cast<uint32_t>(n) * outer + i * inner +
                             static_cast<uint32_t>(emulated::lane()) * 4),
                  4);
    }
    mma<T>(sum, a, x[0], x[1]);
    for (int e = 0; e < 4; ++e) c[4 * n + e] = sum[e];
  }
}

}  // namespace lazy::kernels::cuda
