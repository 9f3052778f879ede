#include "model/blocks/softcapped_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/blocks/log_softmax.h"
#include "ops/linear_cross_entropy.h"

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kIgnored = -100;
constexpr int64_t kCpuLogits = int64_t{1} << 22;  // maximum number of logits in a chunk on a CPU
constexpr int64_t kMinChunkTokens = 64;  // minimum number of tokens per chunk, because each chunk reads all weights

at::ScalarType result_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Converts an operand of a product: a GPU multiplies 16-bit operands, a CPU multiplies fp32 operands.
at::Tensor factor_of(const at::Tensor& x, const at::Tensor& hidden) {
  return x.to(hidden.is_cuda() ? hidden.scalar_type() : result_type(hidden));
}

// Returns the product a b in fp32 (fp64 for fp64 inputs).
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = result_type(a);
  return a.scalar_type() == type ? at::mm(a, b) : at::mm(a, b, type);
}
// The forward pass computes the gradients while each chunk's logits are in memory; the backward pass multiplies them by
// the gradient of the loss. With t = tanh(z / cap), the gradient with respect to the uncapped logit z is (softmax(cap
// t) - onehot(label)) (1 - t^2).
struct SoftcappedLoss : torch::autograd::Function<SoftcappedLoss> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& labels, double cap, bool want_hidden, bool want_weight) {
    const auto wide = hidden.options().dtype(result_type(hidden));
    const at::Tensor w = factor_of(weight, hidden);
    const int64_t tokens = hidden.size(0), vocabulary = weight.size(0);
    const at::Tensor counted = labels.ne(kIgnored), label = labels.clamp_min(0).unsqueeze(1);
    const at::Tensor total = counted.sum().to(wide.dtype());
    at::Tensor d_hidden, d_weight;
    if (want_hidden) d_hidden = at::empty_like(hidden);
    if (want_weight) d_weight = at::zeros(weight.sizes(), wide);
    const int64_t most = hidden.is_cuda() ? ops::kLogitsBytesCuda / 4 : kCpuLogits;
    const int64_t chunk = std::max(kMinChunkTokens, most / vocabulary);
    const at::Tensor log_prob = at::zeros({tokens}, wide),
                     correct = at::zeros({tokens}, labels.options().dtype(at::kBool));
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
      const int64_t count = std::min(chunk, tokens - begin);
      const at::Tensor h = factor_of(hidden.narrow(0, begin, count), hidden), own = label.narrow(0, begin, count),
                       used = counted.narrow(0, begin, count).unsqueeze(1);
      const at::Tensor t = product(h, w.t()).div_(cap).tanh_();
      const at::Tensor all = log_softmax_rows(t * cap);
      log_prob.narrow(0, begin, count).copy_((all.gather(1, own) * used).squeeze(1));
      correct.narrow(0, begin, count).copy_(all.argmax(1, /*keepdim=*/true).eq(own).logical_and(used).squeeze(1));
      if (!want_hidden && !want_weight) continue;
      at::Tensor d = all.exp();
      d.scatter_add_(1, own, at::full(own.sizes(), -1, wide));
      d = factor_of(d * (1 - t * t) * (used / total), hidden);
      if (want_hidden) d_hidden.narrow(0, begin, count).copy_(product(d, w));
      if (want_weight) d_weight.add_(product(d.t(), h));
    }
    ctx->save_for_backward({d_hidden, d_weight});
    ctx->saved_data["type"] = weight.scalar_type();
    ctx->mark_non_differentiable({log_prob, correct});
    return {-log_prob.sum() / total, log_prob, correct};
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    tensor_list out(6);
    for (size_t n : {0, 1}) {
      if (saved[n].defined())
        out[n] = (saved[n] * grads[0].to(saved[n].scalar_type())).to(ctx->saved_data["type"].toScalarType());
    }
    return out;
  }
};

}  // namespace

at::Tensor softcapped(const at::Tensor& logits, double cap) { return cap > 0 ? at::tanh(logits / cap) * cap : logits; }

std::tuple<at::Tensor, at::Tensor, at::Tensor> softcapped_cross_entropy(const at::Tensor& hidden,
                                                                        const at::Tensor& weight,
                                                                        const at::Tensor& labels, double cap) {
  const bool enabled = at::GradMode::is_enabled();
  const tensor_list out = SoftcappedLoss::apply(hidden, weight, labels, cap, enabled && hidden.requires_grad(),
                                                enabled && weight.requires_grad());
  return {out[0], out[1], out[2]};
}

}  // namespace lazy
