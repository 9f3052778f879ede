#include "ops/linear_cross_entropy.h"

#include "ops/dense_product.h"
#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  row_type("linear_cross_entropy", hidden);
  LAZY_CHECK("linear_cross_entropy", hidden.dim() == 2 && weight.dim() == 2 && weight.sym_size(1) == hidden.sym_size(1),
             "hidden (tokens, dim) and weight (vocab, dim), received ", hidden.sym_sizes(), " and ",
             weight.sym_sizes());
  LAZY_CHECK("linear_cross_entropy", weight.scalar_type() == hidden.scalar_type(), "weight of hidden's type, ",
             hidden.scalar_type(), ", received ", weight.scalar_type());
  LAZY_CHECK("linear_cross_entropy",
             labels.dim() == 1 && labels.sym_size(0) == hidden.sym_size(0) && labels.scalar_type() == at::kLong,
             "labels (tokens) of int64, received ", labels.sym_sizes(), " of ", labels.scalar_type());
  check_device("linear_cross_entropy", "weight", weight, hidden);
  check_device("linear_cross_entropy", "labels", labels, hidden);
}

at::ScalarType kept_gradient_type(const at::Tensor& input) {
  return input.scalar_type() == at::kHalf ? at::kFloat : input.scalar_type();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkLogits = int64_t{1} << 22;  // 16 MiB of fp32 logits at a time

// Products run in fp32 whatever the type: exact products of bf16 numbers, and faster than bf16 where the CPU has no
// AMX.
CrossEntropyGradients compute(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                              int64_t ignore_index, bool want_hidden, bool want_weight) {
  check_linear_cross_entropy(hidden, weight, labels);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);  // it would round the products below
  const int64_t tokens = hidden.size(0), vocabulary = weight.size(0);
  const at::Tensor w = weight.detach().to(at::kFloat).contiguous(), target = labels.contiguous();
  const int64_t* label = target.const_data_ptr<int64_t>();
  int64_t counted = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (label[t] == ignore_index) continue;
    LAZY_CHECK("linear_cross_entropy", label[t] >= 0 && label[t] < vocabulary, "labels from 0 to ", vocabulary - 1,
               ", received ", label[t], " at token ", t);
    ++counted;
  }
  const auto f32 = hidden.options().dtype(at::kFloat);
  at::Tensor log_prob = at::zeros({tokens}, f32), correct = at::zeros({tokens}, hidden.options().dtype(at::kBool));
  at::Tensor d_hidden = want_hidden ? at::zeros(hidden.sizes(), hidden.options()) : at::empty({0}, hidden.options());
  at::Tensor d_weight = want_weight ? at::zeros(weight.sizes(), f32) : at::empty({0}, f32);
  const bool want = want_hidden || want_weight;
  const int64_t chunk = std::max<int64_t>(1, kChunkLogits / std::max<int64_t>(vocabulary, 1));
  float* log_probs = log_prob.mutable_data_ptr<float>();
  bool* corrects = correct.mutable_data_ptr<bool>();
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor h = hidden.detach().narrow(0, begin, count).to(at::kFloat);
    at::Tensor logits = dense_product(h, w);
    float* data = logits.mutable_data_ptr<float>();
    const float scale = want ? 1 / static_cast<float>(counted) : 0;
    parallel_rows(count, vocabulary, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        if (label[begin + t] == ignore_index) {
          std::fill_n(data + t * vocabulary, vocabulary, 0.0f);
          continue;
        }
        const rows::CrossEntropy row = rows::cross_entropy(data + t * vocabulary, vocabulary, label[begin + t], scale);
        log_probs[begin + t] = row.log_prob;
        corrects[begin + t] = row.correct;
      }
    });
    if (want_hidden) d_hidden.narrow(0, begin, count).copy_(dense_product(logits, w.t()));
    if (want_weight) d_weight.addmm_(logits.t(), h);
  }
  at::Tensor loss = -log_prob.sum(at::kDouble) / static_cast<double>(counted);
  return {loss.to(at::kFloat), log_prob, correct, d_hidden, want_weight ? d_weight.to(weight.scalar_type()) : d_weight};
}

CrossEntropyGradients compute_meta(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                   int64_t, bool want_hidden, bool want_weight) {
  check_linear_cross_entropy(hidden, weight, labels);
  const auto f32 = hidden.options().dtype(at::kFloat);
  return {at::empty({}, f32), at::empty_symint({hidden.sym_size(0)}, f32),
          at::empty_symint({hidden.sym_size(0)}, hidden.options().dtype(at::kBool)),
          want_hidden ? at::empty_symint(hidden.sym_sizes(), hidden.options().dtype(kept_gradient_type(hidden)))
                      : at::empty({0}, hidden.options()),
          want_weight ? at::empty_symint(weight.sym_sizes(), weight.options().dtype(kept_gradient_type(weight)))
                      : at::empty({0}, f32)};
}

// The gradient times that of the loss. `input` is an argument so that a second derivative is an error and not silently
// zero.
at::Tensor backward_plain(const at::Tensor& d_loss, const at::Tensor& gradient, const at::Tensor& input) {
  return (gradient * d_loss.to(gradient.scalar_type())).to(input.scalar_type());
}

at::Tensor scaled(const at::Tensor& d_loss, const at::Tensor& gradient, const at::Tensor& input) {
  static const auto op = operator_handle<decltype(backward_plain)>("lazy::linear_cross_entropy_backward");
  return op.call(d_loss, gradient, input);
}

struct Loss : torch::autograd::Function<Loss> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& labels, int64_t ignore_index, bool want_hidden, bool want_weight) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [loss, log_prob, correct, d_hidden, d_weight] =
        linear_cross_entropy_and_gradients(hidden, weight, labels, ignore_index, want_hidden, want_weight);
    context->save_for_backward({d_hidden, d_weight, hidden, weight});
    context->mark_non_differentiable({log_prob, correct});
    context->saved_data["want_hidden"] = want_hidden;
    context->saved_data["want_weight"] = want_weight;
    return {loss, log_prob, correct};
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    variable_list gradients(6);
    if (!d[0].defined()) return gradients;
    if (context->saved_data["want_hidden"].toBool()) gradients[0] = scaled(d[0], saved[0], saved[2]);
    if (context->saved_data["want_weight"].toBool()) gradients[1] = scaled(d[0], saved[1], saved[3]);
    return gradients;
  }
};

CrossEntropyOutputs forward_autograd(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                     int64_t ignore_index) {
  const bool enabled = at::GradMode::is_enabled();
  const variable_list result = Loss::apply(hidden, weight, labels, ignore_index, enabled && hidden.requires_grad(),
                                           enabled && weight.requires_grad());
  return {result[0], result[1], result[2]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, int ignore_index=-100) -> "
      "(Tensor loss, Tensor log_prob, Tensor correct)");
  m.def(
      "linear_cross_entropy_and_gradients(Tensor hidden, Tensor weight, Tensor labels, int ignore_index, "
      "bool want_hidden, bool want_weight) -> "
      "(Tensor loss, Tensor log_prob, Tensor correct, Tensor d_hidden, Tensor d_weight)");
  m.def("linear_cross_entropy_backward(Tensor d_loss, Tensor gradient, Tensor input) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy, CPU, m) {
  m.impl("linear_cross_entropy", linear_cross_entropy_alone);
  m.impl("linear_cross_entropy_and_gradients", compute);
}
TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("linear_cross_entropy", linear_cross_entropy_alone);
  m.impl("linear_cross_entropy_and_gradients", compute_meta);
}
TORCH_LIBRARY_IMPL(lazy, CompositeExplicitAutograd, m) { m.impl("linear_cross_entropy_backward", backward_plain); }
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  m.impl("linear_cross_entropy", forward_autograd);
  m.impl("linear_cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

CrossEntropyGradients linear_cross_entropy_and_gradients(const at::Tensor& hidden, const at::Tensor& weight,
                                                         const at::Tensor& labels, int64_t ignore_index,
                                                         bool want_hidden, bool want_weight) {
  static const auto op = operator_handle<decltype(compute)>("lazy::linear_cross_entropy_and_gradients");
  return op.call(hidden, weight, labels, ignore_index, want_hidden, want_weight);
}

CrossEntropyOutputs linear_cross_entropy_alone(const at::Tensor& hidden, const at::Tensor& weight,
                                               const at::Tensor& labels, int64_t ignore_index) {
  auto [loss, log_prob, correct, d_hidden, d_weight] =
      linear_cross_entropy_and_gradients(hidden, weight, labels, ignore_index, false, false);
  return {loss, log_prob, correct};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                                                    const at::Tensor& labels, int64_t ignore_index) {
  static const auto op = operator_handle<decltype(linear_cross_entropy_alone)>("lazy::linear_cross_entropy");
  return op.call(hidden, weight, labels, ignore_index);
}

}  // namespace lazy::ops
