// From kernel_table.h's entries to the functions that launch them. Each lookup instantiates every entry of its kernel,
// so an entry without an implementation does not compile and a size that is not listed has no launcher.
#pragma once
#include <array>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "attention/cuda/launch.h"
#include "lazy/kernel_table.h"

namespace lazy::kernels::cuda {

using ForwardLauncher = void (*)(const Params& p, cudaStream_t stream);
// The backward writes parts of Params::partial, whose last axis has `partial_step` entries.
using BackwardLauncher = void (*)(const Params& p, int partial_step, cudaStream_t stream);

// Null for what the table does not list.
ForwardLauncher portable_forward(NormalizerFamily family, int64_t head_size);
BackwardLauncher portable_backward(NormalizerFamily family, int64_t head_size);
ForwardLauncher hopper_forward(NormalizerFamily family, int64_t head_size);
BackwardLauncher hopper_backward(NormalizerFamily family, int64_t head_size);

// Throws std::logic_error for a null launcher: unmet_condition_cuda lets no such problem through.
template <typename Launcher>
Launcher require(Launcher launcher, const char* kernel) {
  if (!launcher) throw std::logic_error(std::string("no instantiation of ") + kernel + " serves this problem");
  return launcher;
}

// The launcher of the table's entry I; null if it belongs to another kernel.
template <CudaKernel KERNEL, typename Launcher, template <NormalizerFamily, int> class Kernel, size_t I>
constexpr Launcher entry_launcher() {
  constexpr KernelEntry entry = kTensorCoreKernels[I];
  if constexpr (entry.kernel == KERNEL) {
    return &Kernel<entry.family, entry.head_size>::launch;
  } else {
    return nullptr;
  }
}

// Kernel<family, head size>::launch is instantiated for every entry of KERNEL.
template <CudaKernel KERNEL, typename Launcher, template <NormalizerFamily, int> class Kernel>
Launcher find_launcher(NormalizerFamily family, int64_t head_size) {
  static constexpr auto launchers = []<size_t... I>(std::index_sequence<I...>) {
    return std::array<Launcher, sizeof...(I)>{entry_launcher<KERNEL, Launcher, Kernel, I>()...};
  }
  (std::make_index_sequence<std::size(kTensorCoreKernels)>());
  const KernelEntry* entry = find_entry(KERNEL, family, head_size);
  return entry ? launchers[entry - kTensorCoreKernels.data()] : nullptr;
}

// Calls function(std::integral_constant) with the first of kHeadSizeLimits that is not below `dim`.
template <typename Function>
void with_head_size_limit(int64_t dim, const Function& function) {
  const bool found = [&]<size_t... I>(std::index_sequence<I...>) {
    return ((dim <= kHeadSizeLimits[I] && (function(std::integral_constant<int, kHeadSizeLimits[I]>()), true)) || ...);
  }
  (std::make_index_sequence<std::size(kHeadSizeLimits)>());
  if (!found) throw std::logic_error("no instantiation serves head size " + std::to_string(dim));
}

// Calls function(std::true_type()) if scores are capped and function(std::false_type()) otherwise. Capped scores have a
// separate instantiation, so that the other one needs no more registers.
template <typename Function>
void with_softcap(const Params& p, const Function& function) {
  p.softcap ? function(std::true_type()) : function(std::false_type());
}

// Calls function(T()) with the 16-bit type of the tensor-core kernels.
template <typename Bf16, typename F16, typename Function>
void with_half_type(DType type, const Function& function) {
  switch (type) {
    case DType::bf16:
      return function(Bf16());
    case DType::f16:
      return function(F16());
    case DType::f32:
    case DType::f64:
      break;
  }
  throw std::logic_error("the tensor-core kernels have no instantiation for " + std::string(name(type)));
}

}  // namespace lazy::kernels::cuda
