#include "model/blocks/swiglu_mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/checkpoint_names.h"
#include "ops/swiglu.h"

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// W: gate's rows, then up's. `parts` as in LinearFunction: the leaves of gate, up and down.
struct MlpFunction : torch::autograd::Function<MlpFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& W, const at::Tensor& W_down,
                            at::TensorList parts, const NormOutput& input, bool recompute) {
    const auto [kept, weight] = input.saved_for_backward();
    const at::Tensor products = at::mm(x, W.t());
    const int64_t inner = parts[0].size(0);
    const at::Tensor activation = ops::swiglu(products.narrow(1, 0, inner), products.narrow(1, inner, inner));
    ctx->save_for_backward({weight.defined() ? kept : x, weight, W, W_down, recompute ? at::Tensor() : products,
                            recompute || x.is_cuda() ? at::Tensor() : activation});
    ctx->saved_data["eps"] = input.eps;
    return at::mm(activation, W_down.t());
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &W = saved[2], &W_down = saved[3];
    const int64_t inner = W.size(0) / 2;
    const auto want = [&](size_t part) { return ctx->needs_input_grad(3 + part); };
    const at::Tensor x = recompute_norm(saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    const at::Tensor products = saved[4].defined() ? saved[4] : at::mm(x, W.t());
    const at::Tensor gate = products.narrow(1, 0, inner), up = products.narrow(1, inner, inner);
    const at::Tensor activation = saved[5].defined() ? saved[5] : ops::swiglu(gate, up);
    const auto below = product_gradients(activation, W_down, {W_down.size(0)}, {grads[0]}, true, {want(2)});
    const auto [d_gate, d_up] = ops::swiglu_backward(below.x, gate, up);
    const auto first =
        product_gradients(x, W, {inner, inner}, {d_gate, d_up}, ctx->needs_input_grad(0), {want(0), want(1)});
    return {first.x, {}, {}, first.parts[0], first.parts[1], below.parts[0], {}, {}};
  }
};

}  // namespace

SwigluMlp::SwigluMlp(const ModelConfig& c, at::Device device)
    : config_(c),
      gate_up_(c.hidden_size, {c.intermediate(), c.intermediate()}, device),
      down_(c.intermediate(), {c.hidden_size}, device) {}

NamedTensors SwigluMlp::parameters() const {
  const CheckpointNames names(config_);
  return {{names.gate, gate_up_.parts()[0]}, {names.up, gate_up_.parts()[1]}, {names.down, down_.parts()[0]}};
}

at::Tensor SwigluMlp::forward(const NormOutput& x, bool recompute) const {
  std::vector<int64_t> shape = x.value.sizes().vec();
  const at::ScalarType dtype = x.value.scalar_type();
  const std::vector<at::Tensor> parts{gate_up_.parts()[0], gate_up_.parts()[1], down_.parts()[0]};
  const at::Tensor y = MlpFunction::apply(x.value.reshape({-1, shape.back()}), gate_up_.matrix(dtype),
                                          down_.matrix(dtype), at::TensorList(parts), x, recompute);
  shape.back() = y.size(1);
  return y.view(shape);
}

}  // namespace lazy
