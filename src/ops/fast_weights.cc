#include "ops/fast_weights.h"

#include <map>

#include "ops/forced_kernel.h"

namespace lazy::ops {

namespace {

std::map<c10::DeviceType, FastWeightsKernels>& registered_kernels() {
  static std::map<c10::DeviceType, FastWeightsKernels> kernels;
  return kernels;
}

const FastWeightsKernels* allowed_for(c10::DeviceType device) {
  const auto kernels = registered_kernels().find(device);
  const bool forbidden = forced_kernel() == "plain" || forced_kernel() == "reference";
  return kernels == registered_kernels().end() || forbidden ? nullptr : &kernels->second;
}

}  // namespace

void set_fast_weights_kernels(c10::DeviceType device, const FastWeightsKernels& kernels) {
  registered_kernels()[device] = kernels;
}

const FastWeightsKernels* fast_weights_kernels(c10::DeviceType device, int64_t T, int64_t H, bool momentum) {
  const FastWeightsKernels* const kernels = allowed_for(device);
  return kernels && kernels->serves(T, H, momentum) ? kernels : nullptr;
}

const FastWeightsKernels* ttt_kernels(c10::DeviceType device, int64_t H) {
  const FastWeightsKernels* const kernels = allowed_for(device);
  return kernels && kernels->serves_ttt(H) ? kernels : nullptr;
}

const FastWeightsKernels* ttt_norm_kernels(c10::DeviceType device, int64_t dim) {
  const FastWeightsKernels* const kernels = allowed_for(device);
  return kernels && kernels->serves_ttt_norm(dim) ? kernels : nullptr;
}

}  // namespace lazy::ops
