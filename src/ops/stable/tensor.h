// The part of ATen that the operators use, implemented with the stable ABI of LibTorch: one binary works with every
// PyTorch from version TORCH_TARGET_VERSION on.
//
// The classes are in lazy::ops::at, which the code of lazy::ops finds before ::at. Thus the same sources compile with
// ATen (the program) and with this file (the Python package). Names and semantics are those known from ATen. Features
// without a counterpart in the stable ABI are implemented in python/lazy_attention/_registration.py: autograd,
// autocast, fake kernels.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Like the macro of ATen: throws only the message, which Python sees as a RuntimeError.
#define TORCH_CHECK(condition, ...)                                                 \
  do {                                                                              \
    if (!(condition)) throw std::runtime_error(::lazy::ops::c10::str(__VA_ARGS__)); \
  } while (false)

namespace lazy::ops {

namespace c10 {

template <typename... Values>
std::string str(const Values&... values) {
  std::ostringstream text;
  text << std::boolalpha;
  (text << ... << values);
  return text.str();
}

using SymInt = int64_t;  // symbolic sizes occur only in fake kernels, which are in Python
using SymDimVector = std::vector<int64_t>;

}  // namespace c10

namespace at {

// PyTorch gives its header-only classes hidden visibility in each library. The classes below contain them and are
// passed between liblazy_ops.so and liblazy_ops_cuda.so, which are built together.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wattributes"

using torch::headeronly::ScalarType;
inline constexpr ScalarType kByte = ScalarType::Byte, kInt = ScalarType::Int, kLong = ScalarType::Long,
                            kHalf = ScalarType::Half, kFloat = ScalarType::Float, kDouble = ScalarType::Double,
                            kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;

class Device : public torch::stable::Device {
 public:
  using torch::stable::Device::Device;
  Device(const torch::stable::Device& device) : torch::stable::Device(device) {}
};
inline const Device kCPU(torch::headeronly::DeviceType::CPU);

inline std::ostream& operator<<(std::ostream& out, const Device& device) {
  out << (device.is_cpu() ? "cpu" : device.is_cuda() ? "cuda" : "another device");
  return device.has_index() && !device.is_cpu() ? out << ':' << device.index() : out;
}

template <typename T>
using ArrayRef = torch::headeronly::HeaderOnlyArrayRef<T>;
class IntArrayRef : public torch::headeronly::IntHeaderOnlyArrayRef {
 public:
  using torch::headeronly::IntHeaderOnlyArrayRef::HeaderOnlyArrayRef;
  IntArrayRef() = default;
  IntArrayRef(torch::headeronly::IntHeaderOnlyArrayRef values) : torch::headeronly::IntHeaderOnlyArrayRef(values) {}
  IntArrayRef slice(size_t start, size_t length) const { return {data() + start, length}; }
  bool operator==(const IntArrayRef& other) const { return equals(other); }
};

inline std::ostream& operator<<(std::ostream& out, const IntArrayRef& values) {
  out << '[';
  for (size_t n = 0; n < values.size(); ++n) out << (n ? ", " : "") << values[n];
  return out << ']';
}

class TensorOptions {
 public:
  TensorOptions(const Device& device, ScalarType type) : device_(device), type_(type) {}
  TensorOptions dtype(ScalarType type) const { return {device_, type}; }
  const Device& device() const { return device_; }
  ScalarType scalar_type() const { return type_; }

 private:
  Device device_;
  ScalarType type_;
};

class Tensor;

// Calls an operator. `arguments` must contain all arguments of the operator's schema. Result is Tensor, a number or
// void.
template <typename Result, typename... Arguments>
Result call(const char* name, const char* overload, const Arguments&... arguments);

class Tensor {
 public:
  Tensor() = default;  // creates an undefined tensor
  explicit Tensor(torch::stable::Tensor tensor) : tensor_(std::move(tensor)) {}

  bool defined() const { return tensor_.has_value(); }
  const torch::stable::Tensor& stable() const { return *tensor_; }
  bool is_same(const Tensor& other) const { return stable().get() == other.stable().get(); }

  int64_t dim() const { return stable().dim(); }
  int64_t numel() const { return stable().numel(); }
  int64_t size(int64_t dim) const { return stable().size(dim); }
  int64_t stride(int64_t dim) const { return stable().stride(dim); }
  IntArrayRef sizes() const { return stable().sizes(); }
  IntArrayRef strides() const { return stable().strides(); }
  int64_t sym_numel() const { return numel(); }
  int64_t sym_size(int64_t dim) const { return size(dim); }
  IntArrayRef sym_sizes() const { return sizes(); }
  ScalarType scalar_type() const { return stable().scalar_type(); }
  Device device() const { return stable().device(); }
  int8_t get_device() const { return stable().get_device(); }
  bool is_cpu() const { return stable().is_cpu(); }
  bool is_cuda() const { return stable().is_cuda(); }
  bool is_pinned() const { return call<bool>("aten::is_pinned", "", *this, std::optional<torch::stable::Device>()); }
  bool is_inference() const { return call<bool>("aten::is_inference", "", *this); }
  int64_t _version() const { return call<int64_t>("aten::_version", "", *this); }
  TensorOptions options() const { return {device(), scalar_type()}; }

  const void* const_data_ptr() const { return stable().const_data_ptr(); }
  void* mutable_data_ptr() const { return stable().mutable_data_ptr(); }
  template <typename T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(const_data_ptr());
  }
  template <typename T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(mutable_data_ptr());
  }

  Tensor contiguous() const { return stable().is_contiguous() ? *this : Tensor(torch::stable::contiguous(stable())); }
  Tensor to(ScalarType type) const { return type == scalar_type() ? *this : Tensor(torch::stable::to(stable(), type)); }
  Tensor to(const Device& device, ScalarType type, bool non_blocking = false) const {
    return Tensor(torch::stable::to(stable(), type, std::nullopt, device, std::nullopt, non_blocking));
  }
  Tensor cpu() const { return Tensor(torch::stable::to(stable(), kCPU)); }
  Tensor view(IntArrayRef sizes) const { return Tensor(torch::stable::view(stable(), sizes)); }
  Tensor view(ScalarType type) const { return call<Tensor>("aten::view", "dtype", *this, type); }
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const {
    torch::stable::Tensor self = stable();  // torch::stable::narrow takes a non-const reference
    return Tensor(torch::stable::narrow(self, dim, start, length));
  }
  std::vector<Tensor> chunk(int64_t count, int64_t dim) const {  // `count` must divide the size
    std::vector<Tensor> parts;
    const int64_t length = size(dim) / count;
    for (int64_t n = 0; n < count; ++n) parts.push_back(narrow(dim, n * length, length));
    return parts;
  }
  Tensor t() const { return Tensor(torch::stable::transpose(stable(), 0, 1)); }
  Tensor unsqueeze(int64_t dim) const { return Tensor(torch::stable::unsqueeze(stable(), dim)); }
  Tensor flatten(int64_t first, int64_t last) const { return Tensor(torch::stable::flatten(stable(), first, last)); }
  Tensor expand(IntArrayRef sizes) const { return call<Tensor>("aten::expand", "", *this, sizes, false); }
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides) const {
    return call<Tensor>("aten::as_strided", "", *this, sizes, strides, std::optional<int64_t>());
  }
  Tensor sum(int64_t dim) const {
    return Tensor(torch::stable::sum(stable(), torch::headeronly::IntHeaderOnlyArrayRef(dim)));
  }
  Tensor sum(ScalarType type) const {
    return Tensor(torch::stable::sum(stable(), std::nullopt, /*keepdim=*/false, type));
  }
  void copy_(const Tensor& source) const {
    torch::stable::Tensor self = stable();
    torch::stable::copy_(self, source.stable());
  }

 private:
  std::optional<torch::stable::Tensor> tensor_;
};

#pragma GCC diagnostic pop

inline Tensor empty(IntArrayRef sizes, const TensorOptions& options) {
  return Tensor(torch::stable::empty(sizes, options.scalar_type(), std::nullopt, options.device()));
}
inline Tensor empty_symint(IntArrayRef sizes, const TensorOptions& options) { return empty(sizes, options); }
inline Tensor empty_like(const Tensor& t) { return Tensor(torch::stable::empty_like(t.stable())); }
inline Tensor full(IntArrayRef sizes, double value, const TensorOptions& options) {
  return Tensor(torch::stable::full(sizes, value, options.scalar_type(), std::nullopt, options.device()));
}
inline Tensor zeros(IntArrayRef sizes, const TensorOptions& options) { return full(sizes, 0, options); }
inline Tensor mm(const Tensor& a, const Tensor& b) { return call<Tensor>("aten::mm", "", a, b); }
inline void mm_out(const Tensor& out, const Tensor& a, const Tensor& b) { call<Tensor>("aten::mm", "out", a, b, out); }
inline void mm_out(const Tensor& out, const Tensor& a, const Tensor& b, ScalarType type) {
  call<Tensor>("aten::mm", "dtype_out", a, b, type, out);
}
inline Tensor operator*(const Tensor& a, const Tensor& b) { return call<Tensor>("aten::mul", "Tensor", a, b); }
inline Tensor mul_out(const Tensor& out, const Tensor& a, const Tensor& b) {
  return call<Tensor>("aten::mul", "out", a, b, out);
}
inline void _assert_async(const Tensor& condition, const std::string& message) {
  call<void>("aten::_assert_async", "msg", condition, message);
}
inline Tensor constant_pad_nd(const Tensor& t, IntArrayRef pad) { return Tensor(torch::stable::pad(t.stable(), pad)); }

template <typename Function>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Function& function) {
  torch::stable::parallel_for(begin, end, grain, function);
}
inline int get_num_threads() { return static_cast<int>(torch::stable::get_num_threads()); }

// Converts a value to its representation on the dispatcher's stack.
inline StableIValue boxed(const Tensor& t) { return torch::stable::detail::from(t.stable()); }
inline StableIValue boxed(IntArrayRef values) {
  return torch::stable::detail::from(static_cast<torch::headeronly::IntHeaderOnlyArrayRef>(values));
}
template <typename T>
StableIValue boxed(const T& value) {
  return torch::stable::detail::from(value);
}

template <typename Result, typename... Arguments>
Result call(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments)> stack{boxed(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  if constexpr (std::is_same_v<Result, Tensor>) {
    return Tensor(torch::stable::detail::to<torch::stable::Tensor>(stack[0]));
  } else if constexpr (!std::is_void_v<Result>) {
    return torch::stable::detail::to<Result>(stack[0]);
  }
}

}  // namespace at

inline int64_t known_size(const at::Tensor& t, int64_t dim) { return t.size(dim); }

namespace c10 {
using SymIntArrayRef = at::IntArrayRef;
}  // namespace c10

}  // namespace lazy::ops
