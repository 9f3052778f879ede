// lazy::rope for the C++ program: the Meta kernel, which computes only shapes, the autograd kernel and the entry point.
// The Python package uses python/lazy_attention/_registration.py instead.
#include "ops/rope_autograd.h"

namespace lazy::ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rope(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions) {
  using Signature = at::Tensor(LAZY_ROPE_PARAMETERS);
  static const auto op = operator_handle<Signature>("lazy::rope");
  const RopeScaling& s = a.scaling;
  return op.call(x, a.base, a.offset, inverse, positions, a.rotary_dim, a.interleaved, s.type, s.factor,
                 s.original_length, s.low_frequency, s.high_frequency, s.beta_fast, s.beta_slow, s.truncate,
                 s.attention_factor, s.pair_factors);
}

void save_rope(AutogradContext& context, const RopeArguments& a) {
  const RopeScaling& s = a.scaling;
  auto& data = context.saved_data;
  data["rope_offset"] = a.offset;
  data["rope_rotary_dim"] = a.rotary_dim;
  data["rope_interleaved"] = a.interleaved;
  data["rope_scaling"] = s.type;
  data["rope_original_length"] = s.original_length;
  data["rope_truncate"] = s.truncate;
  data["rope_numbers"] = std::vector<double>{a.base,      s.factor,    s.low_frequency,   s.high_frequency,
                                             s.beta_fast, s.beta_slow, s.attention_factor};
  data["rope_pair_factors"] = s.pair_factors;
}

RopeArguments saved_rope(AutogradContext& context) {
  auto& data = context.saved_data;
  const std::vector<double> n = data["rope_numbers"].toDoubleVector();
  return {n[0],
          data["rope_offset"].toInt(),
          data["rope_rotary_dim"].toInt(),
          data["rope_interleaved"].toBool(),
          {data["rope_scaling"].toStringRef(), n[1], data["rope_original_length"].toInt(), n[2], n[3], n[4], n[5],
           data["rope_truncate"].toBool(), n[6], data["rope_pair_factors"].toDoubleVector()}};
}

namespace {

at::Tensor rope_forward_meta(LAZY_ROPE_PARAMETERS) {
  const RopeArguments a LAZY_ROPE_PACK;
  check_rope(x, positions, a);
  return at::empty_symint(x.sym_sizes(), x.options());
}

// RoPE is linear in x, and the transpose of the rotation is the inverse rotation. Derivatives of any order are
// therefore calls of the operator itself.
struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RopeArguments& a, bool inverse,
                            const OptionalTensor& positions) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_rope(*context, a);
    context->saved_data["inverse"] = inverse;
    context->save_for_backward({positions.value_or(at::Tensor())});
    return rope(x, a, inverse, positions);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const at::Tensor positions = context->get_saved_variables()[0];
    return {rope(d[0], saved_rope(*context), !context->saved_data["inverse"].toBool(),
                 positions.defined() ? OptionalTensor(positions) : OptionalTensor()),
            {},
            {},
            {}};
  }
};

at::Tensor rope_forward_autograd(LAZY_ROPE_PARAMETERS) {
  return Rope::apply(x, RopeArguments LAZY_ROPE_PACK, inverse, positions);
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) { m.impl("rope", rope_forward_meta); }
TORCH_LIBRARY_IMPL(lazy, Autograd, m) { implement_reverse_mode(m, "rope", rope_forward_autograd); }

at::Tensor rope(const at::Tensor& x, double base, int64_t offset, const RopeOptions& o) {
  return rope(x, {base, offset, o.rotary_dim < 0 ? x.size(-1) : o.rotary_dim, o.interleaved, o.scaling}, false,
              o.positions.defined() ? OptionalTensor(o.positions) : OptionalTensor());
}

}  // namespace lazy::ops
