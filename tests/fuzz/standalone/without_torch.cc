// Stubs for functions that need LibTorch. This build does not use LibTorch.
#include "model/device.h"

namespace lazy {

std::string resolve_device(const std::string& device, const char*) { return device == "auto" ? "cpu" : device; }
std::string resolve_dtype(const std::string& dtype, const std::string&) { return dtype == "auto" ? "fp32" : dtype; }
double peak_bf16_tflops(const std::string&) { return 0; }

}  // namespace lazy
