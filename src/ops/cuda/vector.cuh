// Loads and stores adjacent elements of a row, 16 or 8 bytes at a time, and converts them to fp32. N = 1 is for rows
// that are not aligned; the kernels then process one element at a time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "lazy/attention.h"
#include "ops/cuda/load_once.cuh"

namespace lazy::ops::cuda {

template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));  // number of elements in 16 bytes

// N elements in the representation that they have in memory.
template <typename T, int N>
using Bits = std::conditional_t<N == 1, T, std::conditional_t<N * sizeof(T) == 8, uint2, uint4>>;
template <typename T, int N>
constexpr int kWords = N* static_cast<int>(sizeof(T)) / 4;  // number of 4-byte words in N elements; only for N > 1

template <typename T, int N>
__device__ Bits<T, N> load_once(const T* from) {
  static_assert(N == 1 || N == kWide<T> || N == kWide<T> / 2);
  if constexpr (N == 1) {
    return __ldg(from);
  } else {
    Bits<T, N> x;
    load_once(x, from);
    return x;
  }
}

template <typename T, int N>
__device__ Bits<T, N> load(const T* from) {
  return __ldg(reinterpret_cast<const Bits<T, N>*>(from));
}

template <typename T, int N>
__device__ void store(T* to, Bits<T, N> x) {
  *reinterpret_cast<Bits<T, N>*>(to) = x;
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ T rounded(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
}

template <typename T>
__device__ float2 unpack(uint32_t bits) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  }
}

template <typename T>
__device__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

template <typename T, int N>
__device__ void expand(Bits<T, N> x, float (&out)[N]) {
  if constexpr (N == 1) {
    out[0] = to_float(x);
  } else {
    uint32_t word[4] = {x.x, x.y};
    if constexpr (kWords<T, N> == 4) word[2] = x.z, word[3] = x.w;
#pragma unroll
    for (int i = 0; i < kWords<T, N>; ++i) {
      if constexpr (sizeof(T) == 4) {
        out[i] = __uint_as_float(word[i]);
      } else {
        const float2 both = unpack<T>(word[i]);
        out[2 * i] = both.x;
        out[2 * i + 1] = both.y;
      }
    }
  }
}

template <typename T, int N>
__device__ Bits<T, N> round_all(const float (&x)[N]) {
  if constexpr (N == 1) {
    return rounded<T>(x[0]);
  } else {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < kWords<T, N>; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = __float_as_uint(x[i]);
      } else {
        word[i] = pack<T>(x[2 * i], x[2 * i + 1]);
      }
    }
    if constexpr (kWords<T, N> == 2) {
      return {word[0], word[1]};
    } else {
      return {word[0], word[1], word[2], word[3]};
    }
  }
}

// Returns 1 / (1 + exp(-x)). For 16-bit results, the error of the approximation is below the rounding error.
template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) return 1 / (1 + expf(-x));
  return __fdividef(1, 1 + __expf(-x));
}

// Loads N adjacent fp32 numbers that many threads read, such as weights and cosines. The address must be aligned to 16
// bytes if N is 4 or 8.
template <int N>
__device__ void load_floats(const float* from, float (&out)[N]) {
  if constexpr (N < 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = __ldg(from + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 x = __ldg(reinterpret_cast<const float4*>(from + i));
      out[i] = x.x;
      out[i + 1] = x.y;
      out[i + 2] = x.z;
      out[i + 3] = x.w;
    }
  }
}

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Calls function(T{}) for the dtype of the rows.
template <typename Function>
void with_type(kernels::DType type, const Function& function) {
  if (type == kernels::DType::f32) return function(float{});
  if (type == kernels::DType::bf16) return function(__nv_bfloat16{});
  return function(__half{});
}

}  // namespace lazy::ops::cuda
