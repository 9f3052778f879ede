// Replaces src/attention/cuda/mma.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do not use
// PTX.
#pragma once
#include <cstdint>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace lazy::kernels::cuda {

// The emulated shared-memory address is the offset in bytes from the start of the dynamic shared memory, modulo 2^32.
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - emulated::dynamic_memory());
}
inline char* at_address(uint32_t address) { return emulated::dynamic_memory() + static_cast<int32_t>(address); }

namespace emulation {

template <typename T>
float widen(T x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __bfloat162float(x);
  if constexpr (std::is_same_v<T, __half>) return __half2float(x);
}
template <typename T>
T narrow(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16(x);
  if constexpr (std::is_same_v<T, __half>) return __float2half(x);
}
template <typename T>
float half_of(uint32_t pair, int n) {
  T both[2];
  std::memcpy(both, &pair, 4);
  return widen(both[n]);
}

struct Matrices {
  uint32_t address;
  uint32_t* registers;
};
template <bool TRANSPOSED>
void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if (address % 16) std::abort();
  Matrices slot{address, r};
  emulated::meet_warp(~0u, &slot, [](void* const* slots, uint32_t) {
    for (int m = 0; m < 4; ++m) {
      uint16_t x[8][8];
      for (int row = 0; row < 8; ++row) {
        std::memcpy(x[row], at_address(static_cast<Matrices*>(slots[8 * m + row])->address), 16);
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = 2 * (lane % 4);
        const uint32_t low = TRANSPOSED ? x[column][row] : x[row][column];
        const uint32_t high = TRANSPOSED ? x[column + 1][row] : x[row][column + 1];
        static_cast<Matrices*>(slots[lane])->registers[m] = low | high << 16;
      }
    }
  });
}

struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

// Computes c += a b. a has shape (16, K) and b (K, 8); the elements of c are distributed over the registers of the
// lanes.
template <int K>
void add_product(const float (&a)[16][K], const float (&b)[K][8], void* const* slots) {
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < K; ++k) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* c = static_cast<Product*>(slots[lane])->c;
    for (int e = 0; e < 4; ++e) c[e] += sums[lane / 4 + e / 2 * 8][2 * (lane % 4) + e % 2];
  }
}

}  // namespace emulation

inline void load_matrices(uint32_t (&r)[4], uint32_t address) { emulation::load_matrices<false>(r, address); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) { emulation::load_matrices<true>(r, address); }

template <typename T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::Product slot{c, a, {b0, b1}};
  emulated::meet_warp(~0u, &slot, [](void* const* slots, uint32_t) {
    using emulation::half_of, emulation::Product;
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto* s = static_cast<const Product*>(slots[lane]);
      const int row = lane / 4, k = 2 * (lane % 4);
      for (int n = 0; n < 2; ++n) {
        a[row][k + n] = half_of<T>(s->a[0], n);
        a[row + 8][k + n] = half_of<T>(s->a[1], n);
        a[row][k + 8 + n] = half_of<T>(s->a[2], n);
        a[row + 8][k + 8 + n] = half_of<T>(s->a[3], n);
        b[k + n][row] = half_of<T>(s->b[0], n);
        b[k + 8 + n][row] = half_of<T>(s->b[1], n);
      }
    }
    emulation::add_product(a, b, slots);
  });
}

template <typename T>
uint32_t pack(float x, float y) {
  const T both[2] = {emulation::narrow<T>(x), emulation::narrow<T>(y)};
  uint32_t r;
  std::memcpy(&r, both, 4);
  return r;
}

template <typename T>
float2 unpack(uint32_t x) {
  return {emulation::half_of<T>(x, 0), emulation::half_of<T>(x, 1)};
}

inline float exp2_fast(float x) { return exp2f(x); }
inline float positive(float x) { return std::isnan(x) ? x : fmaxf(x, 0); }
inline float max_nan(float x, float y) { return std::isnan(x) || std::isnan(y) ? NAN : fmaxf(x, y); }

inline void copy_async(uint32_t to, const void* from, bool there) { emulated::copy_async(at_address(to), from, there); }
inline void copies_commit() { emulated::commit_copies(); }
template <int pending>
void copies_wait() {
  emulated::wait_for_copies(pending);
}

}  // namespace lazy::kernels::cuda
