#include "ops/swiglu.h"

#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

void check_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  row_type("swiglu", gate);
  LAZY_CHECK("swiglu", gate.dim() >= 1, "gate of at least one dimension, received a scalar");
  check_like("swiglu", "up", up, "gate", gate);
}

void check_swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  check_like("swiglu_backward", "d_y", d_y, "gate", gate);
}

at::Tensor as_rows(const at::Tensor& t) {
  const int64_t dim = t.size(-1);
  if (t.stride(-1) != 1 && dim > 1) return t.contiguous().view({-1, dim});
  for (int64_t d = 0; d + 2 < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != t.stride(d + 1) * t.size(d + 1)) return t.contiguous().view({-1, dim});
  }
  return t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (y.numel() == 0) return y;
  const at::Tensor g = as_rows(gate), u = as_rows(up);
  parallel_rows(g.size(0), g.size(1), [&](int64_t begin, int64_t end) {
    rows::swiglu(row_type("swiglu", gate), g.const_data_ptr(), g.stride(0), u.const_data_ptr(), u.stride(0),
                 y.mutable_data_ptr(), begin, end, g.size(1));
  });
  return y;
}

Pair backward_cpu(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu_backward(d_y, gate, up);
  at::Tensor d_gate = at::empty(gate.sizes(), gate.options()), d_up = at::empty(gate.sizes(), gate.options());
  if (d_y.numel() == 0) return {d_gate, d_up};
  const at::Tensor dy = d_y.contiguous(), g = as_rows(gate), u = as_rows(up);
  parallel_rows(g.size(0), g.size(1), [&](int64_t begin, int64_t end) {
    rows::swiglu_backward(row_type("swiglu", gate), dy.const_data_ptr(), g.const_data_ptr(), g.stride(0),
                          u.const_data_ptr(), u.stride(0), d_gate.mutable_data_ptr(), d_up.mutable_data_ptr(), begin,
                          end, g.size(1));
  });
  return {d_gate, d_up};
}

at::Tensor forward_meta(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  return at::empty_symint(gate.sym_sizes(), gate.options());
}
Pair backward_meta(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu_backward(d_y, gate, up);
  return {at::empty_symint(gate.sym_sizes(), gate.options()), at::empty_symint(gate.sym_sizes(), gate.options())};
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

at::Tensor forward_autograd(const at::Tensor& gate, const at::Tensor& up) { return Swiglu::apply(gate, up); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor d_y, Tensor gate, Tensor up) -> (Tensor d_gate, Tensor d_up)");
}
TORCH_LIBRARY_IMPL(lazy, CPU, m) {
  m.impl("swiglu", forward_cpu);
  m.impl("swiglu_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("swiglu", forward_meta);
  m.impl("swiglu_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  m.impl("swiglu", forward_autograd);
  m.impl("swiglu_backward", torch::autograd::autogradNotImplementedFallback());  // no second derivatives
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op = operator_handle<decltype(forward_cpu)>("lazy::swiglu");
  return op.call(gate, up);
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  static const auto op = operator_handle<decltype(backward_cpu)>("lazy::swiglu_backward");
  return op.call(d_y, gate, up);
}

}  // namespace lazy::ops
