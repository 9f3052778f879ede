// Forward declarations of LibTorch types, for headers that only refer to them. A header that stores a tensor or a
// device by value must include <ATen/core/Tensor.h>.
#pragma once
#include <cstdint>

namespace c10 {
struct Device;
enum class ScalarType : int8_t;
}  // namespace c10

namespace at {
using namespace c10;  // same as in LibTorch's own headers: at::Device is c10::Device
class Tensor;
}  // namespace at
