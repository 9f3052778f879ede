// lazy::swiglu for the C++ program: the Meta kernels, which compute only shapes, the autograd kernels and the entry
// points. The Python package uses python/lazy_attention/_registration.py instead.
#include "ops/autograd.h"
#include "ops/swiglu.h"

namespace lazy::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor swiglu_forward_meta(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  return at::empty_symint(gate.sym_sizes(), gate.options());
}
Pair swiglu_backward_meta(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu_backward(d_y, gate, up);
  return {at::empty_symint(gate.sym_sizes(), gate.options()), at::empty_symint(gate.sym_sizes(), gate.options())};
}

Pair halves_backward_meta(const at::Tensor& d_y, const at::Tensor& gate_up, bool recompute) {
  check_swiglu_halves_backward(d_y, gate_up);
  return empty_halves_gradients(d_y, gate_up, recompute);
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({gate, up});
    return swiglu(gate, up);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    auto [d_gate, d_up] = swiglu_backward(d[0], saved[0], saved[1]);
    return {d_gate, d_up};
  }
};

at::Tensor swiglu_forward_autograd(const at::Tensor& gate, const at::Tensor& up) { return Swiglu::apply(gate, up); }

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("swiglu", swiglu_forward_meta);
  m.impl("swiglu_backward", swiglu_backward_meta);
  m.impl("swiglu_halves_backward", halves_backward_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "swiglu", swiglu_forward_autograd);
  for (const char* name : {"swiglu_backward", "swiglu_halves_backward"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());  // no second derivatives
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op = operator_handle<decltype(swiglu_forward_meta)>("lazy::swiglu");
  return op.call(gate, up);
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  static const auto op = operator_handle<decltype(swiglu_backward_meta)>("lazy::swiglu_backward");
  return op.call(d_y, gate, up);
}

std::tuple<at::Tensor, at::Tensor> swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute) {
  static const auto op = operator_handle<decltype(halves_backward_meta)>("lazy::swiglu_halves_backward");
  return op.call(d_y, gate_up, recompute);
}

}  // namespace lazy::ops
