#include "model/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Rows a slice: a few MB of logits, which stay in the cache of a processor and fill a GPU.
int64_t slice_rows(int64_t vocabulary, bool cpu) {
  const int64_t elements = cpu ? int64_t{1} << 20 : int64_t{1} << 26;
  return std::clamp<int64_t>(elements / vocabulary, 64, 8192);
}

at::Tensor slice_logits(const at::Tensor& hidden, const at::Tensor& W) { return at::mm(hidden, W.t()).to(at::kFloat); }

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& W,
                            const at::Tensor& weight, const at::Tensor& labels, bool hidden_grad, bool weight_grad) {
    const int64_t rows = hidden.size(0), step = slice_rows(W.size(0), hidden.is_cpu());
    const at::Tensor used = labels.ne(kIgnoredLabel);
    const at::Tensor inverse_count = used.sum().clamp_min(1).to(at::kFloat).reciprocal();
    at::Tensor total = at::zeros({}, hidden.options().dtype(at::kFloat));
    at::Tensor dhidden, dW;
    if (hidden_grad) dhidden = at::empty_like(hidden);
    if (weight_grad) dW = at::zeros(W.sizes(), W.options().dtype(at::kFloat));
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t n = std::min(step, rows - begin);
      const at::Tensor h = hidden.narrow(0, begin, n);
      const at::Tensor use = used.narrow(0, begin, n);
      const at::Tensor label = labels.narrow(0, begin, n).masked_fill(use.logical_not(), 0).unsqueeze(1);
      at::Tensor log_p = at::log_softmax(slice_logits(h, W), 1);
      total -= (log_p.gather(1, label).squeeze(1) * use).sum();
      if (!hidden_grad && !weight_grad) continue;
      // d loss / d logits = (softmax - onehot(label)) / count, zero in ignored rows.
      at::Tensor d = log_p.exp_();
      d.scatter_add_(1, label, at::full_like(label, -1, d.options()));
      d.mul_((use * inverse_count).unsqueeze(1));
      d = d.to(hidden.scalar_type());
      if (hidden_grad) {
        at::Tensor out = dhidden.narrow(0, begin, n);
        at::mm_out(out, d, W);
      }
      if (weight_grad) {
        if (d.scalar_type() == at::kFloat)
          dW.addmm_(d.t(), h);
        else
          dW.add_(at::mm(d.t(), h));
      }
    }
    ctx->save_for_backward({dhidden, dW});
    return total * inverse_count;
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    tensor_list out(6);
    if (saved[0].defined()) out[0] = saved[0] * grads[0].to(saved[0].scalar_type());
    if (saved[1].defined()) out[2] = saved[1] * grads[0];
    return out;
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& W, const at::Tensor& weight,
                                const at::Tensor& labels) {
  const bool grad = at::GradMode::is_enabled();
  return LossFunction::apply(hidden, W, weight, labels, grad && hidden.requires_grad(), grad && weight.requires_grad());
}

std::pair<at::Tensor, at::Tensor> linear_log_likelihood(const at::Tensor& hidden, const at::Tensor& W,
                                                        const at::Tensor& labels) {
  const at::NoGradGuard guard;
  const int64_t rows = hidden.size(0), step = slice_rows(W.size(0), hidden.is_cpu());
  at::Tensor likelihood = at::empty({rows}, hidden.options().dtype(at::kFloat));
  at::Tensor best = at::empty({rows}, hidden.options().dtype(at::kBool));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t n = std::min(step, rows - begin);
    const at::Tensor logits = slice_logits(hidden.narrow(0, begin, n), W);
    const at::Tensor label = labels.narrow(0, begin, n);
    const at::Tensor used = label.ne(kIgnoredLabel);
    const at::Tensor index = label.masked_fill(used.logical_not(), 0).unsqueeze(1);
    const at::Tensor value = logits.gather(1, index).squeeze(1) - at::logsumexp(logits, 1);
    likelihood.narrow(0, begin, n).copy_(value.masked_fill(used.logical_not(), 0));
    best.narrow(0, begin, n).copy_(logits.argmax(1).eq(label));
  }
  return {likelihood, best};
}

}  // namespace lazy
