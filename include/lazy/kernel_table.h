// What each kernel serves: one table of head sizes, GPU architectures, element types and normalizer families. Kernel
// instantiations, dispatch, the messages about unserved problems and `lazy info` follow from it. Host code only: no
// GPU and no CUDA headers are needed to ask.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "lazy/attention.h"

namespace lazy::kernels {

// plain: every problem, fp32 arithmetic. portable: tensor cores by mma.sync, sm_80 and later. hopper: sm_90 only.
enum class CudaKernel { automatic, plain, portable, hopper };

const char* name(CudaKernel kernel);

inline constexpr int kAnyCapability = std::numeric_limits<int>::max();

// Bytes that a block may ask for on every GPU from sm_80 on.
inline constexpr int kLeastSharedMemory = 99 * 1024;

// One instantiation of a tensor-core kernel: forward and backward, for each of kTensorCoreTypes.
struct KernelEntry {
  CudaKernel kernel;
  NormalizerFamily family;
  int head_size;                       // of keys and of values
  int min_capability, max_capability;  // 10 major + minor, both inclusive
  int shared_memory = 0;               // bytes a block; 0: at most kLeastSharedMemory
};

// The portable kernel serves every family at head sizes 64 and 128; the exponential family has the other sizes and the
// hopper kernel.
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
inline constexpr DType kKernelTypes[] = {DType::f32, DType::bf16, DType::f16};  // of the CPU and the plain kernels

// Head sizes of the tensor-core kernels, ascending. The operators pad other sizes with zeros to the next of these.
inline constexpr auto kTensorCoreHeadSizes = [] {
  // Entry n counts if no entry before it has its size.
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

// The plain kernel and decode serve every head size up to the last; each is computed by the instantiation of the next
// of these. Decode's tensor-core products want multiples of kDecodeHeadMultiple.
inline constexpr int kHeadSizeLimits[] = {64, 128, 256};
inline constexpr int kMaxHeadSize = 256;
inline constexpr int kDecodeHeadMultiple = 8;

// Entries of the distance bias whose gradient one block sums in shared memory. The hopper kernel serves no more.
inline constexpr int kMaxBlockBias = 2048;

// The tensor-core kernels keep alive_sum (attention.h) of heads up to this size: at larger ones registers do not
// suffice.
inline constexpr int kMaxAliveSumHead = 128;

// The smallest of kHeadSizeLimits that holds both sizes; 0: none does.
constexpr int head_size_limit(int64_t head_dim, int64_t value_dim) {
  for (const int size : kHeadSizeLimits) {
    if (head_dim <= size && value_dim <= size) return size;
  }
  return 0;
}

// Null where the table has no such entry.
constexpr const KernelEntry* find_entry(CudaKernel kernel, NormalizerFamily family, int64_t head_size) {
  for (const KernelEntry& entry : kTensorCoreKernels) {
    if (entry.kernel == kernel && entry.family == family && entry.head_size == head_size) return &entry;
  }
  return nullptr;
}

// What a support check needs to know about a GPU.
struct DeviceFacts {
  int compute_capability = 0;       // 10 major + minor; 0: no GPU
  int shared_memory_per_block = 0;  // bytes that one block may ask for
};

// Why this kernel cannot serve the problem on such a GPU, as one line; empty when it can. `automatic` asks whether any
// can. Conditions on the problem come before those on the GPU, so that the answer depends on the GPU last.
std::string unmet_condition_cuda(const Problem& problem, CudaKernel kernel, const DeviceFacts& device);

// The fastest kernel that serves the problem on such a GPU.
CudaKernel choose_cuda(const Problem& problem, const DeviceFacts& device);

// How much a key/value cache can hold.
struct CacheSize {
  int64_t keys = 0;   // of a sequence at most: the capacity, or table_width * page_size
  int64_t pages = 0;  // paged: pages of k and v
};

// The same as unmet_condition_cuda for decoding. plain forces fp32 arithmetic and portable the tensor cores; with
// `automatic` strides and head sizes decide.
std::string unmet_condition_decode_cuda(const Problem& problem, const CacheSize& cache, CudaKernel kernel);

}  // namespace lazy::kernels
