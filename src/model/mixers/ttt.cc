#include "model/mixers/ttt.h"

#include <ATen/ATen.h>

#include "model/language_model.h"
#include "model/mixers/layer_state.h"
#include "model/mixers/ttt_kind.h"
#include "ops/rope.h"

namespace lazy {

TttMixer::TttMixer(const ModelConfig& c, at::Device device)
    : heads_(c.mix.heads),
      dim_(c.mix.key_dim),
      mini_batch_(c.mix.chunk),
      base_rate_(c.mixer == kTttMlp.name ? 0.1 : 1),
      rope_base_(c.rope_base),
      qkv_(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      output_(c.hidden_size, {c.hidden_size}, device) {
  const std::string at = "seq_modeling_block.";
  NamedTensors made = {{at + "q_proj.weight", qkv_.parts()[0]},
                       {at + "k_proj.weight", qkv_.parts()[1]},
                       {at + "v_proj.weight", qkv_.parts()[2]},
                       {at + "o_proj.weight", output_.parts()[0]}};
  if (c.mix.gate) {
    gate_ = Linear(c.hidden_size, {c.hidden_size}, device);
    made.emplace_back(at + "g_proj.weight", gate_.parts()[0]);
  }
  table_ = ParameterTable(mixer_kind(c).shapes(c), made, device);
  table_.fill(at + "ttt_norm_weight", 1);
  table_.fill(at + "post_norm.weight", 1);
  weights_ = {{parameter("W1")}, {parameter("b1")}};
  if (c.mixer == kTttMlp.name) weights_.W.push_back(parameter("W2")), weights_.b.push_back(parameter("b2"));
}

std::vector<const Linear*> TttMixer::products() const {
  std::vector<const Linear*> all = {&qkv_, &output_};
  if (!gate_.parts().empty()) all.push_back(&gate_);
  return all;
}

bool TttMixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                              at::Generator& generator) const {
  for (const char* made : {"ttt_norm_weight", "ttt_norm_bias", "learnable_ttt_lr_bias", "b1", "b2"}) {
    if (name == std::string("seq_modeling_block.") + made) return false;
  }
  return Mixer::init_parameter(name, fresh, config, generator);
}

TttInputs TttMixer::inputs(const NormOutput& x, const at::Tensor& places) const {
  const auto parts = qkv_.forward(x);
  const auto by_head = [&](const at::Tensor& part) { return part.view({part.size(0), part.size(1), heads_, dim_}); };
  const auto turned = [&](const at::Tensor& part) {
    if (rope_base_ == 0) return by_head(part).to(at::kFloat);
    return ops::rope(by_head(part), rope_base_, 0, {.interleaved = true, .positions = places}).to(at::kFloat);
  };
  const at::ScalarType type = x.value.scalar_type();
  const at::Tensor slope = at::linear(x.value, parameter("learnable_ttt_lr_weight").squeeze(1).to(type)).to(at::kFloat);
  const at::Tensor rate =
      at::sigmoid(slope + parameter("learnable_ttt_lr_bias").squeeze(1)) * (base_rate_ / static_cast<double>(dim_));
  const at::Tensor theta = parameter("learnable_token_idx");
  return {.q = turned(parts[0]),
          .k = turned(parts[1]),
          .v = by_head(parts[2]).to(at::kFloat),
          .rate = rate,
          .place_scale = at::clamp_min(
              at::arange(1, mini_batch_ + 1, theta.options().requires_grad(false)).reciprocal() + theta, 0),
          .norm_weight = parameter("ttt_norm_weight"),
          .norm_bias = parameter("ttt_norm_bias"),
          .rounded = type != at::kFloat};
}

at::Tensor TttMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const int64_t batch = x.value.size(0), length = x.value.size(1), earlier = options.cache ? options.cache->length : 0;
  const at::Tensor positions = options.packed
                                   ? options.packed->positions
                                   : at::arange(earlier, earlier + length, x.value.options().dtype(at::kLong));
  TttInputs in = inputs(x, positions.remainder(mini_batch_));
  in.last_state = options.cache != nullptr;
  const TttState before =
      earlier > 0 ? ttt_state(layer_state(*options.cache, layer), earlier % mini_batch_) : ttt_start(weights_, batch);
  at::Tensor answers;
  if (options.packed) {
    answers = ttt_documents(in, before, batches_of(*options.packed, mini_batch_, x.value.device()));
  } else {
    TttState after;
    std::tie(answers, after) = ttt_chunks(in, before);
    if (options.cache) layer_state(*options.cache, layer) = tensors(after);
  }
  const int64_t width = heads_ * dim_;
  at::Tensor y = at::layer_norm(answers.reshape({batch, length, width}), {width}, parameter("post_norm.weight"),
                                parameter("post_norm.bias"), kTttNormEps)
                     .to(x.value.scalar_type());
  if (!gate_.parts().empty()) y = at::gelu(gate_.forward(x)[0], "tanh") * y;
  return output_.forward(y)[0];
}

}  // namespace lazy
