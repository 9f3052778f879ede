// lazy::rope in the program: shapes (Meta), autograd and the C++ entry.
#include "ops/autograd.h"
#include "ops/rope.h"

namespace lazy::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor forward_meta(LAZY_ROPE_PARAMETERS) {
  const RopeArguments a LAZY_ROPE_PACK;
  check_rope(x, positions, a);
  return at::empty_symint(x.sym_sizes(), x.options());
}

using Signature = at::Tensor(LAZY_ROPE_PARAMETERS);

at::Tensor call(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions) {
  static const auto op = operator_handle<Signature>("lazy::rope");
  const RopeScaling& s = a.scaling;
  return op.call(x, a.base, a.offset, inverse, positions, a.rotary_dim, a.interleaved, s.type, s.factor,
                 s.original_length, s.low_frequency, s.high_frequency, s.beta_fast, s.beta_slow, s.truncate,
                 s.attention_factor);
}

// The operator is linear and its transpose is the inverse rotation, so every derivative is the operator itself.
struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RopeArguments& a, bool inverse,
                            const OptionalTensor& positions) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const RopeScaling& s = a.scaling;
    auto& data = context->saved_data;
    data["offset"] = a.offset;
    data["rotary_dim"] = a.rotary_dim;
    data["interleaved"] = a.interleaved;
    data["inverse"] = inverse;
    data["scaling"] = s.type;
    data["original_length"] = s.original_length;
    data["truncate"] = s.truncate;
    data["numbers"] = std::vector<double>{a.base,      s.factor,    s.low_frequency,   s.high_frequency,
                                          s.beta_fast, s.beta_slow, s.attention_factor};
    context->save_for_backward({positions.value_or(at::Tensor())});
    return call(x, a, inverse, positions);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    auto& data = context->saved_data;
    const std::vector<double> n = data["numbers"].toDoubleVector();
    const RopeArguments a{n[0],
                          data["offset"].toInt(),
                          data["rotary_dim"].toInt(),
                          data["interleaved"].toBool(),
                          {data["scaling"].toStringRef(), n[1], data["original_length"].toInt(), n[2], n[3], n[4], n[5],
                           data["truncate"].toBool(), n[6]}};
    const at::Tensor positions = context->get_saved_variables()[0];
    return {
        call(d[0], a, !data["inverse"].toBool(), positions.defined() ? OptionalTensor(positions) : OptionalTensor()),
        {},
        {},
        {}};
  }
};

at::Tensor forward_autograd(LAZY_ROPE_PARAMETERS) {
  return Rope::apply(x, RopeArguments LAZY_ROPE_PACK, inverse, positions);
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) { m.impl("rope", forward_meta); }
TORCH_LIBRARY_IMPL(lazy, Autograd, m) { m.impl("rope", forward_autograd); }

at::Tensor rope(const at::Tensor& x, double base, int64_t offset, const RopeOptions& o) {
  return call(x, {base, offset, o.rotary_dim < 0 ? x.size(-1) : o.rotary_dim, o.interleaved, o.scaling}, false,
              o.positions.defined() ? OptionalTensor(o.positions) : OptionalTensor());
}

}  // namespace lazy::ops
