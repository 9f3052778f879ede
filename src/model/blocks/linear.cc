#include "model/blocks/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/rms_norm.h"

namespace lazy {

at::Tensor CastCache::get(const at::Tensor& master, at::ScalarType dtype) {
  if (master.scalar_type() == dtype) return master.detach();
  if (placed_ && cast_.scalar_type() == dtype) return cast_;
  const auto version = static_cast<int64_t>(master._version());
  if (!cast_.defined() || cast_.scalar_type() != dtype || version_ != version) {
    cast_ = master.detach().to(dtype);
    version_ = version;
    placed_ = false;
  }
  return cast_;
}

at::Tensor CastCache::place(const at::Tensor& master, at::ScalarType dtype) {
  cast_ = at::empty(master.sizes(), master.options().dtype(dtype).requires_grad(false));
  placed_ = true;
  return cast_;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// x (N, in), W (out, in) in x's dtype. `parts`, the leaves that W is built from, are inputs only to receive their rows
// of dW. The gradients of the outputs arrive as separate tensors and are used without concatenating them.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& W, at::TensorList parts,
                             const NormOutput& input, bool last_apart) {
    const auto [kept, weight] = input.saved_for_backward();
    ctx->save_for_backward({weight.defined() ? kept : x, weight, W});
    ctx->saved_data["eps"] = input.eps;
    ctx->set_materialize_grads(false);
    std::vector<int64_t> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.size(0));
    ctx->saved_data["rows"] = rows;
    if (rows.size() > 1 && last_apart && x.is_cuda()) {
      const int64_t last = rows.back(), others = W.size(0) - last;
      rows.pop_back();
      auto out = at::mm(x, W.narrow(0, 0, others).t()).split_with_sizes(rows, 1);
      out.push_back(at::mm(x, W.narrow(0, others, last).t()));
      return out;
    }
    const at::Tensor y = at::mm(x, W.t());
    if (rows.size() == 1) return {y};
    return y.split_with_sizes(rows, 1);
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const at::Tensor x = recompute_norm(saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    tensor_list out(4 + rows.size());
    int64_t begin = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
      const at::Tensor W_p = saved[2].narrow(0, begin, rows[p]), &dy = grads[p];
      begin += rows[p];
      if (!dy.defined()) continue;
      if (ctx->needs_input_grad(0)) {
        if (out[0].defined()) {
          out[0].addmm_(dy, W_p);
        } else {
          out[0] = at::mm(dy, W_p);
        }
      }
      if (ctx->needs_input_grad(2 + p)) out[2 + p] = weight_gradient(dy, x);
    }
    return out;
  }
};

}  // namespace

at::Tensor weight_gradient(const at::Tensor& d_y, const at::Tensor& x) {
  // On a GPU the product can keep its fp32 accumulator; on a CPU it is rounded.
  if (x.is_cuda() && x.scalar_type() != at::kFloat) {
    at::Tensor dW = at::empty({d_y.size(1), x.size(1)}, x.options().dtype(at::kFloat));
    at::mm_out(dW, d_y.t(), x, at::kFloat);
    return dW;
  }
  return at::mm(d_y.t(), x).to(at::kFloat);
}

Linear::Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart)
    : last_apart_(last_apart) {
  int64_t total = 0;
  for (const int64_t n : out_features) total += n;
  packed_ = at::zeros({total, in_features}, at::TensorOptions().dtype(at::kFloat).device(device));
  int64_t begin = 0;
  for (const int64_t n : out_features) {
    parts_.push_back(packed_.narrow(0, begin, n).detach().requires_grad_(true));
    begin += n;
  }
}

std::vector<at::Tensor> Linear::forward(const NormOutput& x) const {
  std::vector<int64_t> shape = x.value.sizes().vec();
  tensor_list out = LinearFunction::apply(x.value.reshape({-1, packed_.size(1)}), matrix(x.value.scalar_type()),
                                          at::TensorList(parts_), x, last_apart_);
  for (at::Tensor& y : out) {
    shape.back() = y.size(1);
    y = y.view(shape);
  }
  return out;
}

}  // namespace lazy
