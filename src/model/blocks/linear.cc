#include "model/blocks/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// x (N, in), W (out, in) in x's precision. `parts`, the leaves that W was made of, only receive their rows of dW.
// The gradients of the outputs arrive as separate tensors and are used as they are: joining them would be a copy.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& W, at::TensorList parts) {
    ctx->save_for_backward({x, W});
    ctx->set_materialize_grads(false);
    const at::Tensor y = at::mm(x, W.t());
    std::vector<int64_t> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.size(0));
    ctx->saved_data["rows"] = rows;
    if (rows.size() == 1) return {y};
    return y.split_with_sizes(rows, 1);
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &W = saved[1];
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    tensor_list out(2 + rows.size());
    // A GPU's products leave their fp32 sums as they are; a CPU's round them.
    const bool wide = W.is_cuda() && W.scalar_type() != at::kFloat;
    at::Tensor dW = at::empty({W.size(0), W.size(1)}, wide ? W.options().dtype(at::kFloat) : W.options());
    int64_t begin = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
      at::Tensor dW_p = dW.narrow(0, begin, rows[p]);
      const at::Tensor W_p = W.narrow(0, begin, rows[p]), &dy = grads[p];
      begin += rows[p];
      if (!dy.defined()) continue;
      if (ctx->needs_input_grad(0)) {
        if (out[0].defined()) {
          out[0].addmm_(dy, W_p);
        } else {
          out[0] = at::mm(dy, W_p);
        }
      }
      if (ctx->needs_input_grad(2 + p)) {
        wide ? at::mm_out(dW_p, dy.t(), x, at::kFloat) : at::mm_out(dW_p, dy.t(), x);
        out[2 + p] = dW_p.to(at::kFloat);
      }
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

std::vector<at::Tensor> Linear::forward(const at::Tensor& x) const {
  std::vector<int64_t> shape = x.sizes().vec();
  tensor_list out = LinearFunction::apply(x.reshape({-1, packed_.size(1)}), cast_.get(packed_, x.scalar_type()),
                                          at::TensorList(parts_));
  for (at::Tensor& y : out) {
    shape.back() = y.size(1);
    y = y.view(shape);
  }
  return out;
}

}  // namespace lazy
