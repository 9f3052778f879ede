// What each kernel supports: one table of head sizes, GPU architectures, element types and normalizer families. Kernel
// instantiations, dispatch, error messages about unsupported problems and `lazy info` are derived from it. This is host
// code that needs neither a GPU nor the CUDA headers.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "lazy/attention.h"

namespace lazy::kernels {

// plain: supports every problem, with fp32 arithmetic. portable: tensor cores through mma.sync, sm_80 and later.
// hopper: tensor cores through wgmma, sm_90 only.
enum class CudaKernel { automatic, plain, portable, hopper };

const char* name(CudaKernel kernel);

inline constexpr int kAnyCapability = std::numeric_limits<int>::max();

// Dynamic shared memory in bytes that a block can request on every GPU from sm_80 on.
inline constexpr int kMinSharedMemory = 99 * 1024;

// One instantiation of a tensor-core kernel. It covers forward and backward for each type in kTensorCoreTypes.
struct KernelEntry {
  CudaKernel kernel;
  NormalizerFamily family;
  int head_size;                       // head size of both keys and values
  int min_capability, max_capability;  // compute capability as 10 * major + minor, both inclusive
  int shared_memory = 0;               // required shared memory per block in bytes; 0: every supported GPU has enough
};

// The portable kernel supports every family at head sizes 64 and 128. The other head sizes and the hopper kernel exist
// for the exponential family only.
inline constexpr auto kTensorCoreKernels = [] {
  constexpr auto exponential = NormalizerFamily::exponential;
  std::array<KernelEntry, 5 + 2 * std::size(kAllFamilies)> table{{
      {CudaKernel::hopper, exponential, 64, 90, 90},
      {CudaKernel::hopper, exponential, 96, 90, 90},
      {CudaKernel::hopper, exponential, 128, 90, 90},
      {CudaKernel::portable, exponential, 96, 80, kAnyCapability},
      {CudaKernel::portable, exponential, 256, 80, kAnyCapability, 116 * 1024},
  }};
  size_t n = 5;
  for (const NormalizerFamily family : kAllFamilies) {
    for (const int size : {64, 128}) table[n++] = {CudaKernel::portable, family, size, 80, kAnyCapability};
  }
  return table;
}();

inline constexpr DType kTensorCoreTypes[] = {DType::bf16, DType::f16};
// element types that the CPU kernels and the plain CUDA kernel support
inline constexpr DType kKernelTypes[] = {DType::f32, DType::bf16, DType::f16};

// Head sizes of the tensor-core kernels in ascending order. The operators pad other head sizes with zeros to the next
// larger of these.
inline constexpr auto kTensorCoreHeadSizes = [] {
  // Returns whether entry n is the first entry with its head size.
  constexpr auto is_first = [](size_t n) {
    for (size_t i = 0; i < n; ++i) {
      if (kTensorCoreKernels[i].head_size == kTensorCoreKernels[n].head_size) return false;
    }
    return true;
  };
  constexpr size_t count = [is_first] {
    size_t sizes = 0;
    for (size_t n = 0; n < std::size(kTensorCoreKernels); ++n) sizes += is_first(n);
    return sizes;
  }();
  std::array<int, count> sizes{};
  size_t at = 0;
  for (size_t n = 0; n < std::size(kTensorCoreKernels); ++n) {
    if (is_first(n)) sizes[at++] = kTensorCoreKernels[n].head_size;
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}();

// The plain kernel and the decode kernels support every head size up to the last of these limits. A head size between
// two limits is computed by the instantiation for the larger limit. The tensor-core products of decode require head
// sizes that are multiples of kDecodeHeadMultiple.
inline constexpr int kHeadSizeLimits[] = {64, 128, 256};
inline constexpr int kMaxHeadSize = 256;
inline constexpr int kDecodeHeadMultiple = 8;

// Maximum bias_window (number of distance biases per head) for which a thread block can sum the gradient of the
// distance bias in shared memory. The hopper kernel does not support a larger bias_window.
inline constexpr int kMaxBlockBias = 2048;

// Maximum head size for which the tensor-core kernels compute alive_sum (attention.h). Larger heads would need too many
// registers.
inline constexpr int kMaxAliveSumHead = 128;

// Returns the smallest of kHeadSizeLimits that is at least as large as both head sizes, or 0 if one of them exceeds
// every limit.
constexpr int head_size_limit(int64_t head_dim, int64_t value_dim) {
  for (const int size : kHeadSizeLimits) {
    if (head_dim <= size && value_dim <= size) return size;
  }
  return 0;
}

// Returns null if the table has no such entry.
constexpr const KernelEntry* find_entry(CudaKernel kernel, NormalizerFamily family, int64_t head_size) {
  for (const KernelEntry& entry : kTensorCoreKernels) {
    if (entry.kernel == kernel && entry.family == family && entry.head_size == head_size) return &entry;
  }
  return nullptr;
}

// GPU properties on which a support check depends.
struct DeviceFacts {
  int compute_capability = 0;       // 10 * major + minor; 0 if the machine has no GPU
  int shared_memory_per_block = 0;  // maximum shared memory in bytes that one block can request
};

// Returns the reason, as one line, why this kernel cannot compute the problem on such a GPU, or "" if it can. With
// `automatic`, it checks whether any kernel can. Conditions on the problem are checked before conditions on the GPU.
std::string unmet_condition_cuda(const Problem& problem, CudaKernel kernel, const DeviceFacts& device);

// Returns the fastest kernel that supports the problem on such a GPU.
CudaKernel choose_cuda(const Problem& problem, const DeviceFacts& device);

// Capacity of a KV cache.
struct CacheSize {
  int64_t keys = 0;   // maximum number of keys per sequence; for paged caches, table_width * page_size
  int64_t pages = 0;  // paged caches: number of pages in k and in v
};

// Like unmet_condition_cuda, but for decoding with a KV cache. `plain` forces fp32 arithmetic and `portable` forces the
// tensor cores; with `automatic`, the choice depends on the strides and head sizes.
std::string unmet_condition_decode_cuda(const Problem& problem, const CacheSize& cache, CudaKernel kernel);

}  // namespace lazy::kernels
