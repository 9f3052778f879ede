// Replaces src/ops/cuda/fast_weights_ptx.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do not
// use PTX.
#pragma once
#include "attention/cuda/mma.cuh"

namespace lazy::ops::cuda {

inline int thread() { return static_cast<int>(threadIdx.x); }
inline void prefetch(const void*) {}
constexpr bool kClusters = true;
inline void cluster_arrive() { emulated::arrive_in_cluster(); }
inline void cluster_wait() { emulated::wait_in_cluster(); }
template <typename X>
X* own_memory(X* memory) {
  return reinterpret_cast<X*>(emulated::own_memory(reinterpret_cast<char*>(memory)));
}
template <typename X>
X* of_block(X* own, int rank) {
  return reinterpret_cast<X*>(emulated::memory_of(reinterpret_cast<char*>(own), rank));
}
inline void fence_for_bulk_copies() {}
inline void copy_bulk(void* to, const void* from, uint32_t bytes) {
  emulated::copy_bulk(to, from, bytes);
  emulated::commit_bulk();
}
inline void wait_for_bulk_reads() { emulated::wait_for_bulk(0); }
inline uint32_t multiply_halves(uint32_t x, uint32_t y) {
  namespace tensor_core = lazy::kernels::cuda;
  const float2 a = tensor_core::unpack<__half>(x), b = tensor_core::unpack<__half>(y);
  return tensor_core::pack<__half>(a.x * b.x, a.y * b.y);
}
inline uint32_t warp_max(uint32_t x) {
  for (int step = 16; step > 0; step /= 2) x = std::max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
inline float reciprocal(float x) { return 1 / x; }
inline uint32_t tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return std::isfinite(x) ? (bits + 0x1000) & ~0x1FFFu : bits;
}
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  lazy::kernels::cuda::emulation::Product slot{c, a, {b0, b1}};
  emulated::meet_warp(~0u, &slot, [](void* const* slots, uint32_t) {
    using lazy::kernels::cuda::emulation::Product;
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto* s = static_cast<const Product*>(slots[lane]);
      const int i = lane / 4, j = lane % 4;
      for (int n = 0; n < 4; ++n) a[i + n % 2 * 8][j + n / 2 * 4] = __uint_as_float(s->a[n]);
      for (int n = 0; n < 2; ++n) b[j + 4 * n][i] = __uint_as_float(s->b[n]);
    }
    lazy::kernels::cuda::emulation::add_product(a, b, slots);
  });
}

}  // namespace lazy::ops::cuda
