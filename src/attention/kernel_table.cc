// Names of element types and kernels, and the checks of what each kernel supports. This file does not use CUDA and is
// part of every build.
#include "lazy/kernel_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace lazy::kernels {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
  }
  throw std::invalid_argument("unknown element type (number " + std::to_string(static_cast<int>(dtype)) + ")");
}

const char* name(CudaKernel kernel) {
  switch (kernel) {
    case CudaKernel::automatic:
      return "automatic";
    case CudaKernel::plain:
      return "plain";
    case CudaKernel::portable:
      return "portable";
    case CudaKernel::hopper:
      return "hopper";
  }
  throw std::invalid_argument("unknown CUDA kernel (number " + std::to_string(static_cast<int>(kernel)) + ")");
}

namespace {

template <typename Types>
bool listed(const Types& types, DType type) {
  return std::find(std::begin(types), std::end(types), type) != std::end(types);
}

// Joins words for an error message: "a", "a or b", "a, b or c". both() uses "and" instead of "or".
std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (size_t n = 0; n < words.size(); ++n) text += (n == 0 ? "" : n + 1 == words.size() ? " or " : ", ") + words[n];
  return text;
}
std::string both(const std::vector<std::string>& words) {
  std::string text;
  for (size_t n = 0; n < words.size(); ++n) text += (n == 0 ? "" : n + 1 == words.size() ? " and " : ", ") + words[n];
  return text;
}
template <typename Types>
std::string either_type(const Types& types) {
  std::vector<std::string> names;
  for (const DType type : types) names.push_back(name(type));
  return either(names);
}

// Checks the element type. Returns an error message, or an empty string if `types` contains `type`.
template <typename Types>
std::string unmet_type(const std::string& kernel, const std::string& verb, const Types& types, DType type) {
  if (listed(types, type)) return {};
  return kernel + " " + verb + " " + either_type(types) + ", received " + name(type);
}

std::string capability(int n) { return std::to_string(n / 10) + "." + std::to_string(n % 10); }

// Checks whether the portable or the hopper kernel supports the problem: first the head sizes, families and element
// types in kTensorCoreKernels, then the additional limits of the hopper kernel, then the GPU.
std::string unmet_by_tensor_cores(const Problem& p, CudaKernel kernel, const DeviceFacts& device) {
  const std::string the_kernel = std::string("the ") + name(kernel) + " kernel";
  const NormalizerTraits& normalizer = traits(p.normalizer);
  std::vector<int> sizes;
  std::vector<std::string> normalizers;
  for (const NormalizerTraits& other : kNormalizers) {
    const bool served =
        std::any_of(std::begin(kTensorCoreKernels), std::end(kTensorCoreKernels),
                    [&](const KernelEntry& e) { return e.kernel == kernel && e.family == other.family; });
    if (served) normalizers.push_back(other.name);
  }
  for (const KernelEntry& entry : kTensorCoreKernels) {
    if (entry.kernel == kernel && entry.family == normalizer.family) sizes.push_back(entry.head_size);
  }
  std::sort(sizes.begin(), sizes.end());
  if (sizes.empty()) return the_kernel + " supports " + both(normalizers) + ", received " + normalizer.name;
  if (std::string unmet = unmet_type(the_kernel, "supports", kTensorCoreTypes, p.dtype); !unmet.empty()) return unmet;
  const KernelEntry* entry = p.value_dim == p.head_dim ? find_entry(kernel, normalizer.family, p.head_dim) : nullptr;
  if (!entry) {
    std::string list;
    for (const int size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
    return the_kernel + " supports head sizes " + list + " with " + normalizer.name +
           " (the same for keys and values), received " + std::to_string(p.head_dim) + " and " +
           std::to_string(p.value_dim);
  }
  if (p.softcap > 0 && (kernel == CudaKernel::hopper || normalizer.family != NormalizerFamily::exponential)) {
    return the_kernel + " does not support logit softcapping with " + normalizer.name + ", received softcap " +
           std::to_string(p.softcap);
  }
  if (kernel == CudaKernel::hopper) {
    if (p.alibi) return the_kernel + " does not support ALiBi";
    // The hopper kernel masks a key by setting q . k to -inf before it multiplies by the scale. The scale must
    // therefore be positive.
    if (!(static_cast<float>(p.scale) >= std::numeric_limits<float>::min())) {
      return the_kernel + " requires a positive scale, received " + std::to_string(p.scale);
    }
    if (p.bias_window > 0 && !p.causal) return the_kernel + " supports a distance bias only with a causal mask";
    if (p.bias_window > kMaxBlockBias) {
      return the_kernel + " supports a distance bias of up to " + std::to_string(kMaxBlockBias) +
             " entries, received " + std::to_string(p.bias_window);
    }
  }
  if (device.compute_capability < entry->min_capability || device.compute_capability > entry->max_capability) {
    return the_kernel + " requires compute capability " + capability(entry->min_capability);
  }
  if (device.shared_memory_per_block < entry->shared_memory) {
    return the_kernel + " at head size " + std::to_string(entry->head_size) + " requires " +
           std::to_string(entry->shared_memory / 1024) + " KiB of shared memory per block";
  }
  return {};
}

}  // namespace

std::string unmet_condition(const Problem& p) {
  if (!find_traits(p.normalizer)) return unknown_normalizer(p.normalizer);
  return unmet_type("the fast kernels", "support", kKernelTypes, p.dtype);
}

std::string unmet_condition_cuda(const Problem& p, CudaKernel kernel, const DeviceFacts& device) {
  if (!find_traits(p.normalizer)) return unknown_normalizer(p.normalizer);
  if (std::string unmet = unmet_type("the CUDA kernels", "support", kKernelTypes, p.dtype); !unmet.empty())
    return unmet;
  if (head_size_limit(p.head_dim, p.value_dim) == 0) {
    return "the CUDA kernels support head sizes up to " + std::to_string(kMaxHeadSize) + ", received " +
           std::to_string(std::max(p.head_dim, p.value_dim));
  }
  if (std::max(p.q_length, p.k_length) >= int64_t{1} << 30) {
    return "the CUDA kernels support lengths below 2^30, received " + std::to_string(std::max(p.q_length, p.k_length));
  }
  switch (kernel) {
    case CudaKernel::automatic:
    case CudaKernel::plain:
      return {};
    case CudaKernel::portable:
    case CudaKernel::hopper:
      return unmet_by_tensor_cores(p, kernel, device);
  }
  return name(kernel);  // throws, because the value is not one of the kernels
}

CudaKernel choose_cuda(const Problem& p, const DeviceFacts& device) {
  // For up to 64 queries and 64 keys, no other kernel is faster than the plain kernel, which does not round
  // intermediate results to 16 bits.
  if (p.q_length <= 64 && p.k_length <= 64) return CudaKernel::plain;
  for (CudaKernel kernel : {CudaKernel::hopper, CudaKernel::portable}) {
    if (unmet_condition_cuda(p, kernel, device).empty()) return kernel;
  }
  return CudaKernel::plain;
}

std::string unmet_condition_decode_cuda(const Problem& p, const CacheSize& cache, CudaKernel kernel) {
  if (!find_traits(p.normalizer)) return unknown_normalizer(p.normalizer);
  if (std::string unmet = unmet_type("the CUDA kernels", "support", kKernelTypes, p.dtype); !unmet.empty())
    return unmet;
  if (p.head_dim < 1 || p.value_dim < 1 || head_size_limit(p.head_dim, p.value_dim) == 0) {
    return "the CUDA kernels support head sizes from 1 to " + std::to_string(kMaxHeadSize) + ", received " +
           std::to_string(p.head_dim) + " and " + std::to_string(p.value_dim);
  }
  if (std::max(p.q_length, cache.keys) >= int64_t{1} << 30) {
    return "the CUDA kernels support lengths below 2^30, received " + std::to_string(std::max(p.q_length, cache.keys));
  }
  // The kernels count blocks and rows with 32-bit integers.
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads) * static_cast<double>(p.q_length);
  if (rows * (static_cast<double>(cache.keys) / 32 + 2) >= 0x1p31) {
    return "decode on CUDA supports fewer than 2^36 (query row, key) pairs, received " + std::to_string(p.batch) +
           " sequences of " + std::to_string(p.heads) + " heads, " + std::to_string(p.q_length) +
           " query rows and up to " + std::to_string(cache.keys) + " keys";
  }
  switch (kernel) {
    case CudaKernel::automatic:
    case CudaKernel::plain:
      return {};
    case CudaKernel::hopper:
      return "decode has no hopper kernel";
    case CudaKernel::portable:
      if (std::string unmet = unmet_type("decode's portable kernel", "supports", kTensorCoreTypes, p.dtype);
          !unmet.empty()) {
        return unmet;
      }
      if (p.head_dim % kDecodeHeadMultiple != 0 || p.value_dim % kDecodeHeadMultiple != 0) {
        return "decode's portable kernel supports head sizes that are multiples of " +
               std::to_string(kDecodeHeadMultiple) + ", received " + std::to_string(p.head_dim) + " and " +
               std::to_string(p.value_dim);
      }
      return {};
  }
  return name(kernel);  // throws, because the value is not one of the kernels
}

}  // namespace lazy::kernels
