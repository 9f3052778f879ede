// Stubs for functions that need LibTorch, which is not part of this build.
#include "model/device.h"

namespace lazy {

std::string resolve_device(const std::string& device, const char*) { return device == "auto" ? "cpu" : device; }
std::string resolve_dtype(const std::string& dtype, const std::string&) { return dtype == "auto" ? "fp32" : dtype; }
double peak_bf16_tflops(const std::string&) { return 0; }

}  // namespace lazy
