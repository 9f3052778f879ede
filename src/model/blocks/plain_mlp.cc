#include "model/blocks/plain_mlp.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/blocks/recompute.h"
#include "model/checkpoint_names.h"

namespace lazy {
namespace {

at::Tensor activated(const at::Tensor& x, MlpKind kind) {
  if (kind == MlpKind::gelu) return at::gelu(x);
  if (kind == MlpKind::gelu_tanh) return at::gelu(x, "tanh");  // the approximation that GPT-2 and BLOOM use
  if (kind == MlpKind::relu) return at::relu(x);
  fail("model", "mlp_kind: expected gelu, gelu_tanh or relu, found '{}'", name(kind));
}

at::Tensor plus(const at::Tensor& x, const at::Tensor& bias) {
  return bias.defined() ? x + bias.to(x.scalar_type()) : x;
}

}  // namespace

PlainMlp::PlainMlp(const ModelConfig& c, at::Device device)
    : config_(c), up_(c.hidden_size, {c.intermediate()}, device), down_(c.intermediate(), {c.hidden_size}, device) {
  if (!c.mlp.bias) return;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  up_bias_ = at::zeros({c.intermediate()}, options).requires_grad_(true);
  down_bias_ = at::zeros({c.hidden_size}, options).requires_grad_(true);
}

NamedTensors PlainMlp::parameters() const {
  const CheckpointNames names(config_);
  if (!up_bias_.defined()) return {{names.up, up_.parts()[0]}, {names.down, down_.parts()[0]}};
  return {{names.up, up_.parts()[0]},
          {names.up_bias, up_bias_},
          {names.down, down_.parts()[0]},
          {names.down_bias, down_bias_}};
}

at::Tensor PlainMlp::run(const at::Tensor& x) const {
  const at::Tensor inner = activated(plus(up_.forward(x)[0], up_bias_), config_.mlp.kind);
  return plus(down_.forward(inner)[0], down_bias_);
}

at::Tensor PlainMlp::forward(const NormOutput& x, bool again) const {
  if (!again) return run(x.value);
  return recompute({x.value},
                   [this](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{run(in[0])}; })[0];
}

}  // namespace lazy
