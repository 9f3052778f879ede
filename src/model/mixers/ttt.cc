#include "model/mixers/ttt.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/blocks/linear.h"
#include "model/config_json.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/mixer.h"
#include "model/mixers/ttt_kernels.h"
#include "ops/rope.h"

namespace lazy {
namespace {

class TttMixer final : public Mixer {
 public:
  TttMixer(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override;
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  // Computes the inputs of the TTT recurrence from the layer input x. `places` is the index of each token within its
  // mini-batch.
  TttInputs inputs(const NormOutput& x, const at::Tensor& places) const;
  at::Tensor parameter(const char* name) const { return table_[std::string("seq_modeling_block.") + name]; }

  int64_t heads_, dim_, mini_batch_;
  double base_rate_, rope_base_;
  Linear qkv_, output_, gate_;
  ParameterTable table_;
  TttWeights weights_;
};

TttMixer::TttMixer(const ModelConfig& c, int64_t, at::Device device)
    : heads_(c.mixer.heads),
      dim_(c.mixer.key_dim),
      mini_batch_(c.mixer.chunk),
      base_rate_(c.mixer.type == MixerType::ttt_mlp ? 0.1 : 1),
      rope_base_(c.positions.rope_base),
      qkv_(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      output_(c.hidden_size, {c.hidden_size}, device) {
  const std::string at = "seq_modeling_block.";
  NamedTensors made = {{at + "q_proj.weight", qkv_.parts()[0]},
                       {at + "k_proj.weight", qkv_.parts()[1]},
                       {at + "v_proj.weight", qkv_.parts()[2]},
                       {at + "o_proj.weight", output_.parts()[0]}};
  if (c.mixer.gate) {
    gate_ = Linear(c.hidden_size, {c.hidden_size}, device);
    made.emplace_back(at + "g_proj.weight", gate_.parts()[0]);
  }
  table_ = ParameterTable(mixer_kind(c).shapes(c), made, device);
  table_.fill(at + "ttt_norm_weight", 1);
  table_.fill(at + "post_norm.weight", 1);
  weights_ = {{parameter("W1")}, {parameter("b1")}};
  if (c.mixer.type == MixerType::ttt_mlp) weights_.W.push_back(parameter("W2")), weights_.b.push_back(parameter("b2"));
}

std::vector<const Linear*> TttMixer::products() const {
  std::vector<const Linear*> all = {&qkv_, &output_};
  if (!gate_.parts().empty()) all.push_back(&gate_);
  return all;
}

bool TttMixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                              at::Generator& generator) const {
  for (const char* made : {"ttt_norm_weight", "ttt_norm_bias", "learnable_ttt_lr_bias", "b1", "b2"}) {
    if (name == std::string("seq_modeling_block.") + made) return false;
  }
  return Mixer::init_parameter(name, tensor, config, generator);
}

TttInputs TttMixer::inputs(const NormOutput& x, const at::Tensor& places) const {
  const auto parts = qkv_.forward(x);
  const auto by_head = [&](const at::Tensor& part) { return part.view({part.size(0), part.size(1), heads_, dim_}); };
  const auto rotate = [&](const at::Tensor& part) {
    if (rope_base_ == 0) return by_head(part);
    return ops::rope(by_head(part), rope_base_, 0, {.interleaved = true, .positions = places});
  };
  const at::ScalarType type = x.value.scalar_type();
  const at::Tensor slope = at::linear(x.value, parameter("learnable_ttt_lr_weight").squeeze(1).to(type)).to(at::kFloat);
  const at::Tensor rate =
      at::sigmoid(slope + parameter("learnable_ttt_lr_bias").squeeze(1)) * (base_rate_ / static_cast<double>(dim_));
  const at::Tensor theta = parameter("learnable_token_idx");
  return {.q = rotate(parts[0]),
          .k = rotate(parts[1]),
          .v = by_head(parts[2]),
          .rate = rate,
          .position_scale = at::clamp_min(
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
  const TttState before = earlier > 0 ? ttt_state(layer_state(*options.cache, layer), earlier % mini_batch_)
                                      : initial_ttt_state(weights_, batch);
  at::Tensor answers;
  if (options.packed) {
    answers = ttt_packed(in, before, batches_of(*options.packed, mini_batch_, x.value.device()));
  } else {
    TttState after;
    std::tie(answers, after) = ttt_chunks(in, before);
    if (options.cache) layer_state(*options.cache, layer) = tensors(after);
  }
  const int64_t width = heads_ * dim_;
  at::Tensor y = ttt_post_norm(answers.reshape({batch, length, width}), parameter("post_norm.weight"),
                               parameter("post_norm.bias"), x.value.scalar_type());
  if (!gate_.parts().empty()) y = at::gelu(gate_.forward(x)[0], "tanh") * y;
  return output_.forward(y)[0];
}

// Returns the base of the inner learning rate, which the paper fixes to 1 for the linear model and 0.1 for the MLP.
double base_rate(const ModelConfig& m) { return m.mixer.type == MixerType::ttt_mlp ? 0.1 : 1; }

void infer_ttt_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  infer_square_heads_sizes(m);
  if (x.chunk == 0) x.chunk = 16;
}

void check_ttt(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  check_square_heads(m);
  if (x.key_dim % 2 != 0)
    fail("model", "mixer.key_dim: expected an even number (RoPE rotates pairs), found {}", x.key_dim);
}

std::vector<ParameterShape> shapes_ttt(const ModelConfig& m) {
  const int64_t d = m.hidden_size, H = m.mixer.heads, D = m.mixer.key_dim,
                inner = m.mixer.type == MixerType::ttt_mlp ? 4 * D : D;
  const std::string at = "seq_modeling_block.";
  std::vector<ParameterShape> out = {{.name = at + "learnable_token_idx", .shape = {m.mixer.chunk}, .decayed = true},
                                     {.name = at + "ttt_norm_weight", .shape = {H, D}, .decayed = false},
                                     {.name = at + "ttt_norm_bias", .shape = {H, D}, .decayed = false},
                                     {at + "learnable_ttt_lr_weight", {H, 1, d}},
                                     {.name = at + "learnable_ttt_lr_bias", .shape = {H, 1}, .decayed = false},
                                     {at + "W1", {H, D, inner}},
                                     {at + "b1", {H, 1, inner}}};
  if (m.mixer.type == MixerType::ttt_mlp) {
    out.push_back({at + "W2", {H, inner, D}});
    out.push_back({at + "b2", {H, 1, D}});
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) out.push_back({at + name + ".weight", {d, d}});
  if (m.mixer.gate) out.push_back({at + "g_proj.weight", {d, d}});
  out.push_back({at + "post_norm.weight", {d}});
  out.push_back({at + "post_norm.bias", {d}});
  return out;
}

void read_ttt(const config_json::Fields& fields, ModelConfig& m) {
  std::string type = "linear";
  fields.string({"ttt_layer_type"}, type);
  if (type != "linear" && type != "mlp")
    fields.wrong("ttt_layer_type", "linear or mlp", *fields.find({"ttt_layer_type"}));
  m.mixer.type = type == "mlp" ? MixerType::ttt_mlp : MixerType::ttt_linear;
  fields.required_integer({"num_attention_heads"}, m.mixer.heads);
  if (m.mixer.heads < 1 || m.hidden_size % m.mixer.heads != 0) {
    fields.wrong("num_attention_heads", "a divisor of hidden_size", *fields.find({"num_attention_heads"}));
  }
  fields.integer({"mini_batch_size"}, m.mixer.chunk);
  m.mixer.gate = false;
  fields.boolean({"use_gate"}, m.mixer.gate);
  fields.must_be_absent("share_qk", "shared projections of queries and keys");
  fields.must_be_absent("pre_conv", "convolutions before the block");
  double rate = base_rate(m);
  fields.number({"ttt_base_lr"}, rate);
  if (rate != base_rate(m)) fields.wrong("ttt_base_lr", type == "mlp" ? "0.1" : "1", *fields.find({"ttt_base_lr"}));
}

void write_ttt(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["ttt_layer_type"] = m.mixer.type == MixerType::ttt_mlp ? "mlp" : "linear";
  out["num_attention_heads"] = m.mixer.heads;
  out["mini_batch_size"] = m.mixer.chunk;
  out["rope_theta"] = m.positions.rope_base;
  out["ttt_base_lr"] = base_rate(m);
  out["use_gate"] = m.mixer.gate;
  out["share_qk"] = false;
  out["pre_conv"] = false;
}

MixerKind ttt_kind(MixerType type) {
  return {.type = type,
          .model_type = "ttt",
          .architecture = "TTTForCausalLM",
          .rope = true,
          .keys = {"gate"},
          .make = make_mixer_as<TttMixer>,
          .infer_sizes = infer_ttt_sizes,
          .check = check_ttt,
          .shapes = shapes_ttt,
          .read = read_ttt,
          .write = write_ttt};
}

}  // namespace

const MixerKind kTttLinear = ttt_kind(MixerType::ttt_linear), kTttMlp = ttt_kind(MixerType::ttt_mlp);

}  // namespace lazy
