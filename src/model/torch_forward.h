// Forward declarations of LibTorch's types, for headers that only name them. A header that stores a tensor or a device
// by value includes <ATen/core/Tensor.h>.
#pragma once
#include <cstdint>

namespace c10 {
struct Device;
enum class ScalarType : int8_t;
}  // namespace c10

namespace at {
using namespace c10;  // as LibTorch's own headers do: at::Device is c10::Device
class Tensor;
}  // namespace at
