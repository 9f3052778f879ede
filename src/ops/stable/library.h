// Registration of the operators with the stable ABI of LibTorch. The dispatcher passes every argument as a 64-bit value
// on a stack; `boxed` wraps a function with ordinary arguments in a function that takes them from the stack.
#pragma once
#include <torch/csrc/stable/library.h>

#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "ops/stable/tensor.h"

#define LAZY_SCHEMAS(m) STABLE_TORCH_LIBRARY_FRAGMENT(lazy, m)
#define LAZY_KERNELS(key, m) STABLE_TORCH_LIBRARY_IMPL(lazy, key, m)
#define LAZY_KERNEL(function) &::lazy::ops::stable::boxed<function>

namespace lazy::ops {

// Always false, because in this build Python passes the state of torch.use_deterministic_algorithms to the kernels as
// an argument.
inline bool deterministic_algorithms() { return false; }

// Remembers a tensor and its version: is(t) says whether t has the same memory, shape and dtype and has not been
// modified since. The object holds a reference to the memory, so that no other tensor can get the same address.
class SeenTensor {
 public:
  explicit SeenTensor(const at::Tensor& t) : tensor_(t), version_(t._version()) {}
  bool is(const at::Tensor& t) const {
    return t.const_data_ptr() == tensor_.const_data_ptr() && t.sizes() == tensor_.sizes() &&
           t.strides() == tensor_.strides() && t.scalar_type() == tensor_.scalar_type() && t._version() == version_;
  }

 private:
  at::Tensor tensor_;
  int64_t version_;
};

// Computes sum += a b. All matrices have one dtype, or a and b have 16 bits and the sum is fp32 (on a GPU). The stable
// ABI cannot pass scalars, such as the factors of addmm, so this calls an operator that is implemented in Python
// (python/lazy_attention/_registration.py).
inline void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::call<at::Tensor>("lazy::add_product", "", sum, a, b);
}

// Empty in this build: the autograd and autocast kernels in Python run first and disable autograd and autocast.
struct [[maybe_unused]] KernelGuard {};

namespace stable {

// Converts a value on the dispatcher's stack to an argument that the caller owns. Each value may be read only once.
template <typename T>
struct Argument {
  static T read(StableIValue value) { return torch::stable::detail::to<T>(value); }
};
template <>
struct Argument<at::Tensor> {
  static at::Tensor read(StableIValue value) {
    return at::Tensor(torch::stable::detail::to<torch::stable::Tensor>(value));
  }
};
template <>
struct Argument<std::string_view> {
  static std::string read(StableIValue value) {
    const auto handle = torch::stable::detail::to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    std::string text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }
};
template <typename T>
struct Argument<std::optional<T>> {
  static std::optional<T> read(StableIValue value) {
    const auto inner = torch::stable::detail::to<StableIValue*>(value);  // this function owns the pointer
    if (!inner) return std::nullopt;
    const StableIValue content = *inner;
    delete inner;
    return Argument<T>::read(content);
  }
};
template <typename T>
struct Argument<at::ArrayRef<T>> {
  static std::vector<T> read(StableIValue value) { return torch::stable::detail::to<std::vector<T>>(value); }
};
template <size_t N>
struct Argument<std::array<bool, N>> {
  static std::array<bool, N> read(StableIValue value) {
    const std::vector<bool> list = torch::stable::detail::to<std::vector<bool>>(value);
    std::array<bool, N> values{};
    std::copy_n(list.begin(), std::min(N, list.size()), values.begin());
    return values;
  }
};

inline void write(StableIValue* stack, const at::Tensor& result) {
  *stack = torch::stable::detail::from(result.stable());
}
template <typename... Tensors>
void write(StableIValue* stack, const std::tuple<Tensors...>& results) {
  std::apply([&](const auto&... result) { (write(stack++, result), ...); }, results);
}

template <typename Result, typename... Parameters, size_t... places>
void call(StableIValue* stack, Result (*function)(Parameters...), std::index_sequence<places...>) {
  const std::tuple arguments{Argument<std::remove_cvref_t<Parameters>>::read(stack[places])...};
  write(stack, std::apply(function, arguments));
}
template <typename Result, typename... Parameters>
void call(StableIValue* stack, Result (*function)(Parameters...)) {
  call(stack, function, std::index_sequence_for<Parameters...>());
}

template <auto function>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  call(stack, function);
}

}  // namespace stable

}  // namespace lazy::ops
