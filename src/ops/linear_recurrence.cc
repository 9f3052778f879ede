#include "ops/linear_recurrence.h"

#include <map>

#include "ops/autograd.h"
#include "ops/forced_kernel.h"
#include "ops/fused.h"

namespace lazy::ops {

void check_linear_recurrence(LAZY_RECURRENCE_PARAMETERS) {
  constexpr const char* kName = "linear_recurrence";
  const auto bf16 = [&](const char* name, const at::Tensor& t) {
    LAZY_CHECK(kName, t.dim() == 4 && t.scalar_type() == at::kBFloat16, name,
               " (batch, length, heads, dim) of bfloat16, received ", t.sym_sizes(), " of ", t.scalar_type());
    check_device(kName, name, t, v);
  };
  bf16("q", q);
  bf16("k", k);
  bf16("v", v);
  const auto B = v.sym_size(0), L = v.sym_size(1), H = v.sym_size(2), V = v.sym_size(3), G = q.sym_size(2),
             K = q.sym_size(3);
  LAZY_CHECK(kName, q.sym_sizes() == k.sym_sizes() && q.sym_size(0) == B && q.sym_size(1) == L && G > 0 && H % G == 0,
             "q and k with the batch and length of v, and a number of groups that divides the heads of v, received ",
             q.sym_sizes(), ", ", k.sym_sizes(), ", ", v.sym_sizes());
  LAZY_CHECK(kName, L > 0 && (K == 64 || K == 128 || K == 256) && V > 0 && V % 64 == 0,
             "a length above 0, key_dim 64, 128 or 256, and value_dim a multiple of 64, received ", q.sym_sizes(), ", ",
             v.sym_sizes());
  LAZY_CHECK(kName, H < 65536, "fewer than 65536 heads, received ", v.sym_sizes());
  const auto f32 = [&](const char* name, const OptionalTensor& t, c10::SymIntArrayRef sizes) {
    if (!given(t)) return;
    LAZY_CHECK(kName, t->sym_sizes() == sizes && t->scalar_type() == at::kFloat, name, " ", sizes,
               " of float32, received ", t->sym_sizes(), " of ", t->scalar_type());
    check_device(kName, name, *t, v);
  };
  if (given(log_decay) && log_decay->dim() == 1) {
    f32("log_decay", log_decay, {H});
  } else {
    f32("log_decay", log_decay, {B, L, H});
  }
  f32("beta", beta, {B, L, H});
  f32("skip", skip, {H});
  f32("initial_state", initial_state, {B, H, K, V});
  LAZY_CHECK(kName, !delta || (given(beta) && !given(skip)), "beta and no skip with the delta rule, received ",
             given(beta) ? "a skip" : "no beta");
  if (given(documents)) {
    LAZY_CHECK(kName,
               B == 1 && documents->dim() == 1 && documents->sym_size(0) == L && documents->scalar_type() == at::kInt &&
                   !given(initial_state),
               "documents (", L, ") int32 with a batch of 1 and no initial_state, received ", documents->sym_sizes(),
               " of ", documents->scalar_type());
    check_device(kName, "documents", *documents, v);
  }
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Forward = RecurrenceOutputs(LAZY_RECURRENCE_PARAMETERS);
using Backward = RecurrenceGradients(const at::Tensor&, const OptionalTensor&, LAZY_RECURRENCE_PARAMETERS);

std::map<c10::DeviceType, RecurrenceFits>& registered_fits() {
  static std::map<c10::DeviceType, RecurrenceFits> fits;
  return fits;
}

RecurrenceOutputs recurrence_forward_meta(LAZY_RECURRENCE_PARAMETERS) {
  check_linear_recurrence(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
  return {at::empty_symint(v.sym_sizes(), v.options()),
          given(documents) ? at::empty({0}, v.options().dtype(at::kFloat))
                           : at::empty_symint({v.sym_size(0), v.sym_size(2), q.sym_size(3), v.sym_size(3)},
                                              v.options().dtype(at::kFloat))};
}

RecurrenceGradients recurrence_backward_meta(const at::Tensor& d_out, const OptionalTensor&,
                                             LAZY_RECURRENCE_PARAMETERS) {
  check_linear_recurrence(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
  check_like("linear_recurrence_backward", "d_out", d_out, "v", v);
  const auto like = [&](const OptionalTensor& t) {
    return given(t) ? at::empty_symint(t->sym_sizes(), t->options()) : at::empty({0}, v.options().dtype(at::kFloat));
  };
  return {like(q), like(k), like(v), like(log_decay), like(beta), like(skip), like(initial_state)};
}

RecurrenceOutputs call(LAZY_RECURRENCE_PARAMETERS) {
  static const auto op = operator_handle<Forward>("lazy::linear_recurrence");
  return op.call(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
}

struct Recurrence : torch::autograd::Function<Recurrence> {
  static variable_list forward(AutogradContext* context, LAZY_RECURRENCE_PARAMETERS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({q, k, v, tensor_or_undefined(log_decay), tensor_or_undefined(beta),
                                tensor_or_undefined(skip), tensor_or_undefined(initial_state),
                                tensor_or_undefined(documents)});
    context->saved_data["scale"] = scale;
    context->saved_data["delta"] = delta;
    context->set_materialize_grads(false);
    auto [out, state] = call(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
    return {out, state};
  }

  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list t = context->get_saved_variables();
    static const auto op = operator_handle<Backward>("lazy::linear_recurrence_backward");
    const at::Tensor d_out = d[0].defined() ? d[0] : at::zeros_like(t[2]);
    auto [d_q, d_k, d_v, d_log_decay, d_beta, d_skip, d_state] =
        op.call(d_out, t[7].defined() ? at::Tensor() : d[1], t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                context->saved_data["scale"].toDouble(), context->saved_data["delta"].toBool());
    const auto of = [](const at::Tensor& gradient, const at::Tensor& input) {
      return input.defined() ? gradient : at::Tensor();
    };
    return {d_q, d_k, d_v, of(d_log_decay, t[3]), of(d_beta, t[4]), of(d_skip, t[5]), of(d_state, t[6]), {}, {}, {}};
  }
};

RecurrenceOutputs recurrence_forward_autograd(LAZY_RECURRENCE_PARAMETERS) {
  const variable_list out = Recurrence::apply(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
  return {out[0], out[1]};
}

at::Tensor padded(const at::Tensor& x, int64_t last, int64_t before_last = 0) {
  if (!x.defined() || (last == 0 && before_last == 0)) return x;
  return at::constant_pad_nd(x, before_last > 0 ? at::IntArrayRef{0, last, 0, before_last} : at::IntArrayRef{0, last});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def(
      "linear_recurrence(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, Tensor? skip, "
      "Tensor? initial_state, Tensor? documents, float scale, bool delta) -> (Tensor out, Tensor state)");
  m.def(
      "linear_recurrence_backward(Tensor d_out, Tensor? d_state, Tensor q, Tensor k, Tensor v, Tensor? log_decay, "
      "Tensor? beta, Tensor? skip, Tensor? initial_state, Tensor? documents, float scale, bool delta) -> (Tensor d_q, "
      "Tensor d_k, "
      "Tensor d_v, Tensor d_log_decay, Tensor d_beta, Tensor d_skip, Tensor d_initial_state)");
}
TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("linear_recurrence", recurrence_forward_meta);
  m.impl("linear_recurrence_backward", recurrence_backward_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "linear_recurrence", recurrence_forward_autograd);
  m.impl("linear_recurrence_backward", torch::autograd::autogradNotImplementedFallback());  // no second derivatives
}

void set_recurrence_fits(c10::DeviceType device, RecurrenceFits fits) { registered_fits()[device] = fits; }

bool serves_linear_recurrence(const at::Tensor& q, const at::Tensor& v, bool delta) {
  const auto fits = registered_fits().find(v.device().type());
  return fits != registered_fits().end() && v.scalar_type() == at::kBFloat16 && q.scalar_type() == at::kBFloat16 &&
         q.size(3) <= 256 && forced_kernel() != "plain" && forced_kernel() != "reference" &&
         fits->second(padded_key_dim(q.size(3)), delta);
}

// The kernels support key_dim 64, 128 or 256 and multiples of 64 for value_dim; other sizes are padded with zeros.
std::tuple<at::Tensor, at::Tensor> linear_recurrence(const LinearRecurrence& in) {
  const auto f32 = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  const int64_t K = in.q.size(3), V = in.v.size(3), more_keys = padded_key_dim(K) - K,
                more_values = (V + 63) / 64 * 64 - V;
  auto [out, state] =
      call(padded(in.q, more_keys), padded(in.k, more_keys), padded(in.v, more_values), f32(in.log_decay), f32(in.beta),
           f32(in.skip), padded(f32(in.initial_state), more_values, more_keys), in.documents, in.scale, in.delta);
  if (more_values > 0) out = out.narrow(3, 0, V);
  if (in.documents.defined()) return {out, at::Tensor()};
  return {out, more_keys > 0 || more_values > 0 ? state.narrow(2, 0, K).narrow(3, 0, V) : state};
}

}  // namespace lazy::ops
