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

void check_swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up) {
  constexpr const char* kName = "swiglu_halves_backward";
  row_type(kName, gate_up);
  LAZY_CHECK(kName, d_y.dim() >= 1, "d_y of at least one dimension, received a scalar");
  c10::SymDimVector sizes(d_y.sym_sizes().begin(), d_y.sym_sizes().end());
  sizes.back() = sizes.back() * 2;
  LAZY_CHECK(kName, gate_up.sym_sizes() == c10::SymIntArrayRef(sizes) && gate_up.scalar_type() == d_y.scalar_type(),
             "gate_up of ", c10::SymIntArrayRef(sizes), " and ", d_y.scalar_type(), ", received ", gate_up.sym_sizes(),
             " of ", gate_up.scalar_type());
  check_device(kName, "d_y", d_y, gate_up);
}

std::tuple<at::Tensor, at::Tensor> empty_halves_gradients(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute) {
  return {at::empty_symint(gate_up.sym_sizes(), gate_up.options()),
          recompute ? at::empty_symint(d_y.sym_sizes(), d_y.options()) : at::empty({0}, d_y.options())};
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

using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor swiglu_forward_cpu(const at::Tensor& gate, const at::Tensor& up) {
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

// Writes the gradients d_gate and d_up and, if y is defined, the output of swiglu to y. All tensors have the shape
// (rows, dim).
void gradients(const at::Tensor& d_y, const at::Tensor& g, const at::Tensor& u, at::Tensor& d_gate, at::Tensor& d_up,
               const at::Tensor& y) {
  const at::Tensor dy = d_y.contiguous();
  const kernels::DType type = row_type("swiglu", g);
  parallel_rows(g.size(0), g.size(1), [&](int64_t begin, int64_t end) {
    if (y.defined())
      rows::swiglu(type, g.const_data_ptr(), g.stride(0), u.const_data_ptr(), u.stride(0), y.mutable_data_ptr(), begin,
                   end, g.size(1));
    rows::swiglu_backward(type, dy.const_data_ptr(), g.const_data_ptr(), g.stride(0), u.const_data_ptr(), u.stride(0),
                          d_gate.mutable_data_ptr(), d_up.mutable_data_ptr(), d_gate.stride(0), begin, end, g.size(1));
  });
}

Pair swiglu_backward_cpu(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu_backward(d_y, gate, up);
  at::Tensor d_gate = at::empty(gate.sizes(), gate.options()), d_up = at::empty(gate.sizes(), gate.options());
  if (d_y.numel() == 0) return {d_gate, d_up};
  at::Tensor d_gate_rows = as_rows(d_gate), d_up_rows = as_rows(d_up);
  gradients(d_y, as_rows(gate), as_rows(up), d_gate_rows, d_up_rows, {});
  return {d_gate, d_up};
}

Pair halves_backward_cpu(const at::Tensor& d_y, const at::Tensor& gate_up, bool recompute) {
  check_swiglu_halves_backward(d_y, gate_up);
  auto [d_gate_up, y] = empty_halves_gradients(d_y, gate_up, recompute);
  if (d_y.numel() == 0) return {d_gate_up, y};
  auto in = as_rows(gate_up).chunk(2, 1), out = as_rows(d_gate_up).chunk(2, 1);
  gradients(d_y, in[0], in[1], out[0], out[1], recompute ? as_rows(y) : at::Tensor());
  return {d_gate_up, y};
}

}  // namespace

LAZY_SCHEMAS(m) {
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor d_y, Tensor gate, Tensor up) -> (Tensor d_gate, Tensor d_up)");
  m.def("swiglu_halves_backward(Tensor d_y, Tensor gate_up, bool recompute) -> (Tensor d_gate_up, Tensor y)");
}
LAZY_KERNELS(CPU, m) {
  m.impl("swiglu", LAZY_KERNEL(swiglu_forward_cpu));
  m.impl("swiglu_backward", LAZY_KERNEL(swiglu_backward_cpu));
  m.impl("swiglu_halves_backward", LAZY_KERNEL(halves_backward_cpu));
}
}  // namespace lazy::ops
