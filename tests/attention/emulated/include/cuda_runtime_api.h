// Replaces the CUDA runtime in the CPU emulator that runs CUDA kernels in tests (see emulator.h), with the functions
// that the kernels and their tests use.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <type_traits>

#include "../emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

extern emulated::Index threadIdx, blockIdx, blockDim, gridDim;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  operator emulated::Index() const { return {x, y, z}; }
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// The following functions are called in device code.
using std::isfinite;
using std::isinf;
using std::isnan;
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return static_cast<std::common_type_t<A, B>>(b) < static_cast<std::common_type_t<A, B>>(a) ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return static_cast<std::common_type_t<A, B>>(a) < static_cast<std::common_type_t<A, B>>(b) ? b : a;
}
inline float __fdividef(float x, float y) { return x / y; }
// The results are volatile so that the compiler does not contract a multiplication and an addition to an FMA.
inline float __fmul_rn(float x, float y) {
  const volatile float product = x * y;
  return product;
}
inline float __fadd_rn(float x, float y) {
  const volatile float sum = x + y;
  return sum;
}
inline float __expf(float x) { return expf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __uint_as_float(uint32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline float __int_as_float(int32_t x) { return __uint_as_float(static_cast<uint32_t>(x)); }
inline uint32_t __float_as_uint(float x) {
  uint32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline int32_t __float_as_int(float x) { return static_cast<int32_t>(__float_as_uint(x)); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
// Returns sum + (lower 16 bits of x) * (lowest byte of y) + (upper 16 bits of x) * (second byte of y).
inline uint32_t __dp2a_lo(uint32_t x, uint32_t y, uint32_t sum) {
  return sum + (x & 0xFFFF) * (y & 0xFF) + (x >> 16) * (y >> 8 & 0xFF);
}
// Selects four of the eight bytes of x (bytes 0 to 3) and y (bytes 4 to 7), as given by the hexadecimal digits of
// `digits`.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t digits) {
  const uint64_t both = uint64_t{y} << 32 | x;
  uint32_t r = 0;
  for (int n = 0; n < 4; ++n) r |= static_cast<uint32_t>(both >> (digits >> 4 * n & 7) * 8 & 0xFF) << 8 * n;
  return r;
}
template <typename T>
T atomicAdd(T* to, T x) {
  const T old = *to;
  *to = old + x;
  return old;
}
inline float2 atomicAdd(float2* to, float2 x) {
  const float2 old = *to;
  *to = {old.x + x.x, old.y + x.y};
  return old;
}
inline float4 atomicAdd(float4* to, float4 x) {
  const float4 old = *to;
  *to = {old.x + x.x, old.y + x.y, old.z + x.z, old.w + x.w};
  return old;
}
template <typename T>
T atomicMax(T* to, T x) {
  const T old = *to;
  *to = std::max(old, x);
  return old;
}
template <typename T>
T atomicOr(T* to, T x) {
  const T old = *to;
  *to = old | x;
  return old;
}
[[noreturn]] inline void __trap() { std::abort(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Operations in which all threads of a block or all lanes of a warp take part.
inline void __syncthreads() { emulated::meet_block(false); }
inline int __syncthreads_or(int value) { return emulated::meet_block(value != 0); }
inline int __syncthreads_and(int value) { return !emulated::meet_block(value == 0); }
inline void __syncwarp(uint32_t mask = ~0u) {
  emulated::meet_warp(mask, nullptr, [](void* const*, uint32_t) {});
}

namespace emulated {

// Each lane receives the value of lane `source`, or its own value if the source is out of range.
template <typename T>
struct Shuffle {
  T value;
  int source;
};
template <typename T>
T shuffle(uint32_t mask, T value, int source) {
  Shuffle<T> slot{value, source < 0 || source > 31 ? lane() : source};
  meet_warp(mask, &slot, [](void* const* slots, uint32_t members) {
    T values[32];
    for (int n = 0; n < 32; ++n) {
      if (members >> n & 1) values[n] = static_cast<Shuffle<T>*>(slots[n])->value;
    }
    for (int n = 0; n < 32; ++n) {
      if (!(members >> n & 1)) continue;
      auto* slot = static_cast<Shuffle<T>*>(slots[n]);
      slot->value = values[slot->source];
    }
  });
  return slot.value;
}
inline uint32_t ballot(uint32_t mask, bool value) {
  struct Slot {
    bool value;
    uint32_t all;
  } slot{value, 0};
  meet_warp(mask, &slot, [](void* const* slots, uint32_t members) {
    uint32_t all = 0;
    for (int n = 0; n < 32; ++n) {
      if (members >> n & 1 && static_cast<Slot*>(slots[n])->value) all |= uint32_t{1} << n;
    }
    for (int n = 0; n < 32; ++n) {
      if (members >> n & 1) static_cast<Slot*>(slots[n])->all = all;
    }
  });
  return slot.all;
}

}  // namespace emulated

template <typename T>
T __shfl_sync(uint32_t mask, T x, int source, int width = 32) {
  const int lane = emulated::lane();
  return emulated::shuffle(mask, x, lane / width * width + source % width);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T x, int by) {
  return emulated::shuffle(mask, x, emulated::lane() ^ by);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T x, int by) {
  return emulated::shuffle(mask, x, emulated::lane() - by);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T x, int by) {
  return emulated::shuffle(mask, x, emulated::lane() + by);
}
inline uint32_t __ballot_sync(uint32_t mask, int value) { return emulated::ballot(mask, value != 0); }
inline int __any_sync(uint32_t mask, int value) { return emulated::ballot(mask, value != 0) != 0; }
inline int __all_sync(uint32_t mask, int value) { return emulated::ballot(mask, value != 0) == mask; }
inline uint32_t __activemask() { return ~0u; }

// The following types and functions are used in host code.
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
using cudaStream_t = void*;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrCooperativeLaunch
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
inline const char* cudaGetErrorString(cudaError_t status) { return status == cudaSuccess ? "success" : "no memory"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = emulated::gpu.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = 0, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = emulated::gpu.shared_most, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = 108, cudaSuccess;
    case cudaDevAttrCooperativeLaunch:
      return *value = 1, cudaSuccess;
  }
  __builtin_unreachable();
}
inline cudaError_t cudaMalloc(void** to, size_t bytes) {
  *to = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return bytes ? std::memset(to, value, bytes) : to, cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return bytes ? std::memcpy(to, from, bytes) : to, cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

namespace emulated {

// Returns the limits of the dynamic shared memory per kernel, which cudaFuncSetAttribute has set.
inline std::map<const void*, int>& shared_limits() {
  static std::map<const void*, int> limits;
  return limits;
}
constexpr int kSharedUnasked = 48 << 10;

template <typename... P, typename... A>
cudaError_t launch_kernel(void (*kernel)(P...), Index grid, Index block, size_t shared_bytes, unsigned cluster,
                          const A&... arguments) {
  const auto limit = shared_limits().find(reinterpret_cast<const void*>(kernel));
  if (shared_bytes > static_cast<size_t>(limit == shared_limits().end() ? kSharedUnasked : limit->second)) {
    return cudaErrorMemoryAllocation;
  }
  launch(
      grid, block, shared_bytes, [&] { kernel(arguments...); }, cluster);
  return cudaSuccess;
}

}  // namespace emulated

template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > emulated::gpu.shared_most) return cudaErrorMemoryAllocation;
    emulated::shared_limits()[reinterpret_cast<const void*>(kernel)] = value;
  }
  return cudaSuccess;
}
struct cudaFuncAttributes {
  int ptxVersion = emulated::gpu.ptx_version;
  size_t sharedSizeBytes = 0;  // the emulator does not count static shared memory
};
template <typename... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*)(P...)) {
  return cudaSuccess;
}
enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeCooperative
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed, cooperative;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), const A&... arguments) {
  unsigned cluster = 1;
  for (unsigned n = 0; n < config->numAttrs; ++n) {
    if (config->attrs[n].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[n].val.clusterDim.x;
    if (config->attrs[n].id == cudaLaunchAttributeCooperative) cluster = config->gridDim.x;
  }
  return emulated::launch_kernel(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, cluster,
                                 arguments...);
}
