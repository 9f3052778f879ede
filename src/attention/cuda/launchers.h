// Maps the entries of kernel_table.h to functions that launch kernels (launchers). Each lookup function instantiates
// every table entry of its kernel. Therefore, a table entry without an implementation does not compile, and a head size
// that is not in the table has no launcher.
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
// partial_step: size of the last axis of Params::partial, which the backward writes.
using BackwardLauncher = void (*)(const Params& p, int partial_step, cudaStream_t stream);

// The lookups return null for a combination that the table does not list.
ForwardLauncher portable_forward(NormalizerFamily family, int64_t head_size);
BackwardLauncher portable_backward(NormalizerFamily family, int64_t head_size);
ForwardLauncher hopper_forward(NormalizerFamily family, int64_t head_size);
BackwardLauncher hopper_backward(NormalizerFamily family, int64_t head_size);

// Returns the launcher, or throws std::logic_error if it is null. It is never null if unmet_condition_cuda has found
// that the kernel supports the problem.
template <typename Launcher>
Launcher require(Launcher launcher, const char* kernel) {
  if (!launcher) throw std::logic_error(std::string("no instantiation of ") + kernel + " supports this problem");
  return launcher;
}

// Returns the launcher of entry I in the table, or null if the entry belongs to a different kernel.
template <CudaKernel KERNEL, typename Launcher, template <NormalizerFamily, int> class Kernel, size_t I>
constexpr Launcher entry_launcher() {
  constexpr KernelEntry entry = kTensorCoreKernels[I];
  if constexpr (entry.kernel == KERNEL) {
    return &Kernel<entry.family, entry.head_size>::launch;
  } else {
    return nullptr;
  }
}

// Finds the launcher for a family and head size. Instantiates Kernel<family, head size>::launch for every entry of
// KERNEL.
template <CudaKernel KERNEL, typename Launcher, template <NormalizerFamily, int> class Kernel>
Launcher find_launcher(NormalizerFamily family, int64_t head_size) {
  static constexpr auto launchers = []<size_t... I>(std::index_sequence<I...>) {
    return std::array<Launcher, sizeof...(I)>{entry_launcher<KERNEL, Launcher, Kernel, I>()...};
  }
  (std::make_index_sequence<std::size(kTensorCoreKernels)>());
  const KernelEntry* entry = find_entry(KERNEL, family, head_size);
  return entry ? launchers[entry - kTensorCoreKernels.data()] : nullptr;
}

// Calls function(std::integral_constant) with the smallest of kHeadSizeLimits that is not below `dim`.
template <typename Function>
void with_head_size_limit(int64_t dim, const Function& function) {
  const bool found = [&]<size_t... I>(std::index_sequence<I...>) {
    return ((dim <= kHeadSizeLimits[I] && (function(std::integral_constant<int, kHeadSizeLimits[I]>()), true)) || ...);
  }
  (std::make_index_sequence<std::size(kHeadSizeLimits)>());
  if (!found) throw std::logic_error("no instantiation supports head size " + std::to_string(dim));
}

// Calls function(std::true_type()) if the problem has a softcap and function(std::false_type()) otherwise. Kernels with
// a softcap are separate instantiations because they need more registers.
template <typename Function>
void with_softcap(const Params& p, const Function& function) {
  p.softcap ? function(std::true_type()) : function(std::false_type());
}

// Calls function(T()), where T is the type argument Bf16 or F16 that corresponds to `type`.
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
