#include "model/blocks/mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/blocks/activation_checkpoint.h"
#include "model/parameters.h"
#include "ops/swiglu.h"

namespace lazy {
namespace {

// MLP of two matrices with an activation between them and optional biases: down(f(up(x))). GPT-2, BLOOM and
// Transformer-XL use this MLP. With a gate, as in Gemma's GeGLU, the MLP is down(f(gate(x)) up(x)).
class PlainMlp : public FeedForward {
 public:
  PlainMlp(const ModelConfig& config, at::Device device);

  at::Tensor forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {&into_, &down_}; }

 private:
  at::Tensor run(const at::Tensor& x, const LayerHooks& hooks) const;

  ModelConfig config_;
  Linear into_, down_;              // into_: gate_proj (only with a gate) and up_proj; down_: down_proj
  at::Tensor up_bias_, down_bias_;  // fp32, undefined without bias
};

at::Tensor activated(const at::Tensor& x, MlpKind kind) {
  if (kind == MlpKind::gelu) return at::gelu(x);
  if (kind == MlpKind::gelu_tanh || kind == MlpKind::geglu_tanh) return at::gelu(x, "tanh");  // the tanh approximation
  if (kind == MlpKind::relu) return at::relu(x);
  fail("model", "mlp_kind: expected geglu_tanh, gelu, gelu_tanh or relu, found '{}'", name(kind));
}

at::Tensor plus(const at::Tensor& x, const at::Tensor& bias) {
  return bias.defined() ? x + bias.to(x.scalar_type()) : x;
}

PlainMlp::PlainMlp(const ModelConfig& c, at::Device device)
    : config_(c),
      into_(c.hidden_size, std::vector<int64_t>(c.mlp.gated() ? 2 : 1, c.intermediate()), device),
      down_(c.intermediate(), {c.hidden_size}, device) {
  if (!c.mlp.bias) return;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  up_bias_ = at::zeros({c.intermediate()}, options).requires_grad_(true);
  down_bias_ = at::zeros({c.hidden_size}, options).requires_grad_(true);
}

NamedTensors PlainMlp::parameters() const {
  const CheckpointNames names(config_);
  NamedTensors out;
  if (config_.mlp.gated()) out.emplace_back(names.gate, into_.parts().front());
  out.emplace_back(names.up, into_.parts().back());
  if (up_bias_.defined()) out.emplace_back(names.up_bias, up_bias_);
  out.emplace_back(names.down, down_.parts()[0]);
  if (down_bias_.defined()) out.emplace_back(names.down_bias, down_bias_);
  return out;
}

at::Tensor PlainMlp::run(const at::Tensor& x, const LayerHooks& hooks) const {
  const std::vector<at::Tensor> products = into_.forward(x);
  at::Tensor inner = activated(plus(products.front(), up_bias_), config_.mlp.kind);
  if (config_.mlp.gated()) inner = inner * products.back();
  return plus(down_.forward(hooks("mlp.inner", inner))[0], down_bias_);
}

at::Tensor PlainMlp::forward(const NormOutput& x, bool again, const LayerHooks& hooks) const {
  if (!again) return run(x.value, hooks);
  return checkpoint_activations({x.value}, [this, hooks](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{run(in[0], hooks)};
  })[0];
}

// SwiGLU MLP (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) up(x)), as one autograd node that saves as little as
// possible for the backward pass.
class SwigluMlp : public FeedForward {
 public:
  SwigluMlp(const ModelConfig& config, at::Device device);

  // For the backward pass, the CPU implementation saves the products x W_gate^T and x W_up^T and the SwiGLU output, and
  // the GPU implementation saves only the two products. With `recompute`, none of these tensors is saved.
  at::Tensor forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const override;
  bool computes_norm() const override { return !gate_up_.rounds_inputs(); }
  bool describe(ops::FusedDecodeLayer& layer) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {&gate_up_, &down_}; }

 private:
  ModelConfig config_;
  Linear gate_up_, down_;  // gate_up_: gate_proj and up_proj; down_: down_proj
};

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// W contains the rows of gate_proj, then the rows of up_proj. `parts` are the leaf tensors of gate_proj, up_proj and
// down_proj; they are inputs of the node so that they receive the gradients (as in LinearFunction).
struct MlpFunction : torch::autograd::Function<MlpFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& W, const at::Tensor& W_down,
                            at::TensorList parts, const NormOutput& input, bool recompute, bool fp8, bool training) {
    // Save the fp8 operands of the backward pass instead of quantizing them again.
    const bool keep = training && !recompute;
    const Factor factor = make_factor(x, fp8, true, keep);
    const at::Tensor products = forward_product(factor, make_factor(W, fp8, true, false));
    const auto halves = products.chunk(2, 1);
    const at::Tensor activation = ops::swiglu(halves[0], halves[1]);
    const Factor inner = make_factor(activation, fp8, true, keep);
    const auto [kept, weight] = input.saved_for_backward();
    tensor_list saved{weight.defined() ? kept : x, weight, W, W_down, recompute ? at::Tensor() : products};
    if (fp8 && keep) {
      saved[0] = factor.fp8.transposed;
      saved[1] = factor.fp8.scale;
      saved.insert(saved.end(), {inner.fp8.transposed, inner.fp8.scale});
    } else {
      saved.insert(saved.end(), {fp8 || recompute || x.is_cuda() ? at::Tensor() : activation, at::Tensor()});
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["eps"] = input.eps;
    ctx->saved_data["fp8"] = fp8;
    return forward_product(inner, make_factor(W_down, fp8, true, false));
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &W = saved[2], &W_down = saved[3];
    const bool fp8 = ctx->saved_data["fp8"].toBool(), kept_fp8 = fp8 && saved[5].defined();
    const auto want = [&](size_t part) { return ctx->needs_input_grad(3 + part); };
    const Factor x = kept_fp8 ? Factor{.fp8 = {{}, saved[0], saved[1]}}
                              : make_factor(recompute_norm(saved[0], saved[1], ctx->saved_data["eps"].toDouble()), fp8,
                                            !saved[4].defined(), true);
    const at::Tensor products = saved[4].defined() ? saved[4] : forward_product(x, make_factor(W, fp8, true, false));
    const Factor d_y = make_gradient_factor({grads[0]}, fp8, true, want(2));
    const auto [d_products, activation] = ops::swiglu_halves_backward(
        input_gradient(d_y, make_factor(W_down, fp8, false, true)), products, want(2) && !saved[5].defined());
    tensor_list out(10);
    if (want(2)) {
      out[5] = weight_gradient(d_y, kept_fp8             ? Factor{.fp8 = {{}, saved[5], saved[6]}}
                                    : saved[5].defined() ? Factor{saved[5]}
                                                         : make_factor(activation, fp8, false, true));
    }
    const bool any_part = want(0) || want(1), want_x = ctx->needs_input_grad(0);
    const Factor d_inner = make_gradient_factor({d_products}, fp8, want_x, any_part);
    if (want_x) out[0] = input_gradient(d_inner, make_factor(W, fp8, false, true));
    if (any_part) {
      const auto halves = weight_gradient(d_inner, x).chunk(2, 0);
      for (size_t part : {0, 1}) {
        if (want(part)) out[3 + part] = halves[part];
      }
    }
    return out;
  }
};

SwigluMlp::SwigluMlp(const ModelConfig& c, at::Device device)
    : config_(c),
      gate_up_(c.hidden_size, {c.intermediate(), c.intermediate()}, device),
      down_(c.intermediate(), {c.hidden_size}, device) {}

bool SwigluMlp::describe(ops::FusedDecodeLayer& layer) const {
  if (gate_up_.rounds_inputs() || down_.rounds_inputs()) return false;
  layer.gate_up = gate_up_.matrix(layer.qkv.scalar_type());
  layer.down = down_.matrix(layer.qkv.scalar_type());
  return true;
}

NamedTensors SwigluMlp::parameters() const {
  const CheckpointNames names(config_);
  return {{names.gate, gate_up_.parts()[0]}, {names.up, gate_up_.parts()[1]}, {names.down, down_.parts()[0]}};
}

at::Tensor SwigluMlp::forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const {
  if (x.pending) return down_.forward_add_residual(gate_up_.decode_pending(x, /*swiglu=*/true, &down_), x.from);
  if (hooks.wants("mlp.inner") || down_.rounds_inputs()) {
    const std::vector<at::Tensor> products = gate_up_.forward(x);
    return down_.forward(hooks("mlp.inner", ops::swiglu(products[0], products[1])))[0];
  }
  std::vector<int64_t> shape = x.value.sizes().vec();
  const at::ScalarType dtype = x.value.scalar_type();
  const std::vector<at::Tensor> parts{gate_up_.parts()[0], gate_up_.parts()[1], down_.parts()[0]};
  const at::Tensor flat = x.value.reshape({-1, shape.back()});
  if (gate_up_.decodes(flat)) {
    const auto halves = gate_up_.decode(flat).chunk(2, 1);
    return down_.decode(ops::swiglu(halves[0], halves[1])).view(shape);
  }
  const bool fp8 = gate_up_.fp8() && fits_fp8(flat, gate_up_.parts()) && fits_fp8(flat, down_.parts());
  const at::Tensor y = MlpFunction::apply(flat, gate_up_.matrix(dtype), down_.matrix(dtype), at::TensorList(parts), x,
                                          recompute, fp8, at::GradMode::is_enabled());
  shape.back() = y.size(1);
  return y.view(shape);
}

// Mixture of experts as in gpt-oss: a router selects the top experts of each token. The output is the sum of the
// selected experts' outputs y, weighted by the softmax over the selected router scores. An expert is a clamped SwiGLU
// with weights W, W' and biases b, b':
//  gate, up = the even and the odd columns of x W + b;  gate <= limit, |up| <= limit
//  y = (gate sigmoid(alpha gate) (up + 1)) W' + b'
class ExpertsMlp : public FeedForward {
 public:
  ExpertsMlp(const ModelConfig& config, at::Device device);

  at::Tensor forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {}; }

 private:
  at::Tensor run(const at::Tensor& tokens) const;  // input and output: (tokens, hidden_size)
  at::Tensor expert(int64_t index, const at::Tensor& tokens) const;

  ModelConfig config_;
  at::Tensor router_, router_bias_;                       // (experts, hidden_size), (experts) fp32
  at::Tensor gate_up_, gate_up_bias_, down_, down_bias_;  // (experts, in, out), (experts, out) fp32
};

ExpertsMlp::ExpertsMlp(const ModelConfig& c, at::Device device) : config_(c) {
  const auto zeros = [&](at::IntArrayRef shape) {
    return at::zeros(shape, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(true);
  };
  const int64_t n = c.mlp.experts, d = c.hidden_size, inner = c.intermediate();
  router_ = zeros({n, d});
  router_bias_ = zeros({n});
  gate_up_ = zeros({n, d, 2 * inner});
  gate_up_bias_ = zeros({n, 2 * inner});
  down_ = zeros({n, inner, d});
  down_bias_ = zeros({n, d});
}

NamedTensors ExpertsMlp::parameters() const {
  const CheckpointNames names(config_);
  return {{names.router, router_},           {names.router_bias, router_bias_},
          {names.experts_gate_up, gate_up_}, {names.experts_gate_up_bias, gate_up_bias_},
          {names.experts_down, down_},       {names.experts_down_bias, down_bias_}};
}

at::Tensor ExpertsMlp::expert(int64_t index, const at::Tensor& x) const {
  const auto own = [&](const at::Tensor& all) { return all[index].to(x.scalar_type()); };
  const at::Tensor both = at::addmm(own(gate_up_bias_), x, own(gate_up_));
  const double limit = config_.mlp.swiglu_limit;
  const at::Tensor pairs = both.unflatten(1, {-1, 2}), gate = pairs.select(2, 0).clamp_max(limit),
                   up = pairs.select(2, 1).clamp(-limit, limit);
  return at::addmm(own(down_bias_), gate * at::sigmoid(gate * config_.mlp.swiglu_alpha) * (up + 1), own(down_));
}

at::Tensor ExpertsMlp::run(const at::Tensor& tokens) const {
  const at::ScalarType dtype = tokens.scalar_type();
  const at::Tensor scores = at::addmm(router_bias_.to(dtype), tokens, router_.to(dtype).t());
  const auto [best, chosen] = at::topk(scores, config_.mlp.experts_per_token);
  const at::Tensor shares = at::softmax(best, 1);
  at::Tensor out = at::zeros_like(tokens);
  for (int64_t e = 0; e < config_.mlp.experts; ++e) {
    // One row per token that selected expert e: the index of the token, and the position of e among the experts that
    // the token selected.
    const at::Tensor places = chosen.eq(e).nonzero();
    if (places.size(0) == 0) continue;
    const at::Tensor token = places.select(1, 0);
    const at::Tensor share = shares.index({token, places.select(1, 1)}).unsqueeze(1);
    out = out.index_add(0, token, expert(e, tokens.index_select(0, token)) * share);
  }
  return out;
}

at::Tensor ExpertsMlp::forward(const NormOutput& x, bool again, const LayerHooks&) const {
  const at::Tensor tokens = x.value.reshape({-1, config_.hidden_size});
  const auto compute = [this](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{run(in[0])}; };
  return (again ? checkpoint_activations({tokens}, compute) : compute({tokens}))[0].view(x.value.sizes());
}

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, at::Device device) {
  if (config.mlp.kind == MlpKind::swiglu) return std::make_unique<SwigluMlp>(config, device);
  if (config.mlp.kind == MlpKind::experts) return std::make_unique<ExpertsMlp>(config, device);
  return std::make_unique<PlainMlp>(config, device);
}

}  // namespace lazy
