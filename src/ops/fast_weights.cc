#include "ops/fast_weights.h"

#include <map>

#include "ops/forced_kernel.h"

namespace lazy::ops {

namespace {

std::map<c10::DeviceType, FastWeightsKernels>& announced() {
  static std::map<c10::DeviceType, FastWeightsKernels> kernels;
  return kernels;
}

}  // namespace

void set_fast_weights_kernels(c10::DeviceType device, const FastWeightsKernels& kernels) {
  announced()[device] = kernels;
}

const FastWeightsKernels* fast_weights_kernels(c10::DeviceType device, int64_t T, int64_t H, bool momentum) {
  const auto kernels = announced().find(device);
  if (kernels == announced().end() || forced_kernel() == "plain" || forced_kernel() == "reference" ||
      !kernels->second.serves(T, H, momentum)) {
    return nullptr;
  }
  return &kernels->second;
}

}  // namespace lazy::ops
