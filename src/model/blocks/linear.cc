#include "model/blocks/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// x (N, in), W (out, in) in x's precision; parts only receive their rows of dW, in fp32.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                            const at::Tensor& W, at::TensorList parts) {
    ctx->save_for_backward({x, W});
    ctx->saved_data["has_residual"] = residual.has_value();
    std::vector<int64_t> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.size(0));
    ctx->saved_data["rows"] = rows;
    return residual ? at::addmm(*residual, x, W.t()) : at::mm(x, W.t());
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &W = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    tensor_list out(3 + rows.size());
    if (ctx->needs_input_grad(0)) out[0] = at::mm(dy, W);
    size_t input = 1;
    if (ctx->saved_data["has_residual"].toBool()) {
      if (ctx->needs_input_grad(input)) out[1] = dy;
      ++input;
    }
    ++input;  // W itself is a plain copy of the parts
    bool any = false;
    for (size_t i = 0; i < rows.size(); ++i) any |= ctx->needs_input_grad(input + i);
    if (!any) return out;
    const at::Tensor dW = at::mm(dy.t(), x).to(at::kFloat);
    int64_t begin = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (ctx->needs_input_grad(input + i)) out[3 + i] = dW.narrow(0, begin, rows[i]);
      begin += rows[i];
    }
    return out;
  }
};

}  // namespace

Linear::Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device) {
  int64_t total = 0;
  for (const int64_t n : out_features) total += n;
  packed_ = at::zeros({total, in_features}, at::TensorOptions().dtype(at::kFloat).device(device));
  int64_t begin = 0;
  for (const int64_t n : out_features) {
    parts_.push_back(packed_.narrow(0, begin, n).detach().requires_grad_(true));
    begin += n;
  }
}

at::Tensor Linear::forward(const at::Tensor& x) const { return forward_add(x, {}); }

at::Tensor Linear::forward_add(const at::Tensor& x, const at::Tensor& residual) const {
  const int64_t in = packed_.size(1), out = packed_.size(0);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out;
  std::optional<at::Tensor> flat;
  if (residual.defined()) flat = residual.reshape({-1, out});
  return LinearFunction::apply(x.reshape({-1, in}), flat, cast_.get(packed_, x.scalar_type()), at::TensorList(parts_))
      .view(shape);
}

}  // namespace lazy
