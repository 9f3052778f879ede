#include "model/blocks/experts_mlp.h"

#include <ATen/ATen.h>

#include "model/blocks/recompute.h"
#include "model/checkpoint_names.h"

namespace lazy {

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
    const at::Tensor places = chosen.eq(e).nonzero();  // token, and which of its experts this one is
    if (places.size(0) == 0) continue;
    const at::Tensor token = places.select(1, 0);
    const at::Tensor share = shares.index({token, places.select(1, 1)}).unsqueeze(1);
    out = out.index_add(0, token, expert(e, tokens.index_select(0, token)) * share);
  }
  return out;
}

at::Tensor ExpertsMlp::forward(const NormOutput& x, bool again) const {
  const at::Tensor tokens = x.value.reshape({-1, config_.hidden_size});
  const auto compute = [this](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{run(in[0])}; };
  return (again ? recompute({tokens}, compute) : compute({tokens}))[0].view(x.value.sizes());
}

}  // namespace lazy
