// Helpers for the autograd implementations of the operators: custom autograd functions and dispatcher handles.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

namespace lazy::ops {

template <typename Signature>
auto operator_handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Whether an argument of an operator has a tangent (forward-mode differentiation).
inline bool has_tangent(const at::Tensor& t) { return t.defined() && t._fw_grad(0).defined(); }
inline bool has_tangent(const std::optional<at::Tensor>& t) { return t && has_tangent(*t); }
template <typename T>
bool has_tangent(const T&) {
  return false;
}

// Registers an autograd kernel that implements only reverse mode. If an input has a tangent (forward-mode
// differentiation), the kernel raises a NotImplementedError that names the operator. Without this check, the error of
// torch::autograd::Function would not name the operator, and a kernel that does not call
// torch::autograd::Function::apply would silently drop the tangent. Operators that use autogradNotImplementedFallback
// need no such check, because that fallback contains one.
template <typename Result, typename... Parameters>
void implement_reverse_mode(torch::Library& m, const char* name, Result (*kernel)(Parameters...)) {
  m.impl(name, [name, kernel](Parameters... arguments) -> Result {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !(has_tangent(arguments) || ...), "lazy::", name,
        ": forward-mode derivatives are not implemented; use torch.autograd.grad or backward()");
    return kernel(std::forward<Parameters>(arguments)...);
  });
}

}  // namespace lazy::ops
