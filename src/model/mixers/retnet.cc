#include "model/mixers/retnet.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/blocks/linear.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/fla_fields.h"
#include "model/mixers/gates.h"
#include "model/mixers/mixer.h"
#include "model/mixers/recurrence/linear_attention.h"
#include "ops/rope.h"

namespace lazy {
namespace {

class RetNetMixer final : public Mixer {
 public:
  RetNetMixer(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&qkvg_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  int64_t heads_, key_dim_, value_dim_, chunk_;
  bool gate_;
  double norm_eps_;
  Linear qkvg_, output_;
  ParameterTable table_;
  at::Tensor log_decay_;  // (heads), float64
};

constexpr double kRetNetRopeBase = 1e4;
constexpr int64_t kRetNetChunk = 128;  // the fastest chunk size on a CPU

RetNetMixer::RetNetMixer(const ModelConfig& c, int64_t, at::Device device)
    : heads_(c.mixer.heads),
      key_dim_(c.mixer.key_dim),
      value_dim_(c.mixer.value_dim),
      chunk_(c.mixer.chunk > 0 ? c.mixer.chunk : kRetNetChunk),
      gate_(c.mixer.gate),
      norm_eps_(c.norm.eps) {
  const int64_t key = heads_ * key_dim_, value = heads_ * value_dim_;
  std::vector<int64_t> rows = {key, key, value};
  if (gate_) rows.push_back(value);
  qkvg_ = Linear(c.hidden_size, rows, device);
  output_ = Linear(value, {c.hidden_size}, device);
  NamedTensors made = {{"attn.o_proj.weight", output_.parts()[0]}};
  const char* names[] = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.g_proj.weight"};
  for (size_t i = 0; i < rows.size(); ++i) made.emplace_back(names[i], qkvg_.parts()[i]);
  table_ = ParameterTable(kRetNet.shapes(c), made, device);
  // Head h multiplies its state by 1 - 2^(-5 - h) at each token.
  const at::Tensor head = at::arange(heads_, at::TensorOptions().dtype(at::kDouble));
  log_decay_ = at::log1p(-at::exp2(-5 - head)).to(device);
}

bool RetNetMixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& c,
                                 at::Generator& generator) const {
  if (name.find("norm") == std::string::npos) return Mixer::init_parameter(name, tensor, c, generator);
  tensor.fill_(1);
  return true;
}

at::Tensor RetNetMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const auto parts = qkvg_.forward(x);
  // state[0] is the state of the recurrence; state[1] is the number of tokens processed so far, stored on the device.
  RecurrentState state(options, layer, 2);
  const int64_t length = parts[0].size(1);
  ops::RopeOptions rope_options;
  if (options.packed) rope_options.positions = options.packed->positions;
  int64_t offset = options.cache ? options.cache->length : 0;
  // The position is read from the device, because a position passed from the host would be constant in a captured CUDA
  // graph (graphed_state_runner.h).
  if (state[1].defined() && length == 1) {
    rope_options.positions = state[1];
    offset = 0;
  }
  const auto rotated = [&](const at::Tensor& part) {
    return ops::rope(part.unflatten(2, {heads_, key_dim_}), kRetNetRopeBase, offset, rope_options);
  };
  recurrence::Inputs in{.q = rotated(parts[0]),
                        .k = rotated(parts[1]),
                        .v = parts[2].unflatten(2, {heads_, value_dim_}),
                        .log_decay = log_decay_,
                        .scale = 1 / std::sqrt(static_cast<double>(key_dim_))};
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  in.initial_state = state[0];
  const recurrence::Outputs y = recurrence::decay(in, chunk_);
  state[0] = y.state;
  if (options.cache)
    state[1] = state[1].defined() ? state[1] + length : at::full({1}, length, parts[0].options().dtype(at::kLong));
  state.save();
  const at::Tensor weight = table_[gate_ ? "attn.g_norm_swish_gate.weight" : "attn.g_norm.weight"];
  return output_.forward(output_norm(y.out, weight, norm_eps_, gate_ ? parts[3] : at::Tensor()))[0];
}

void infer_retnet_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, m.hidden_size / 256);
  if (x.key_dim == 0) x.key_dim = even_key_dim(m);
  if (x.value_dim == 0) x.value_dim = 2 * x.key_dim;
}

void check_retnet(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  if (x.key_dim % 2 != 0)
    fail("model", "mixer.key_dim: expected an even number (RoPE rotates pairs), found {}", x.key_dim);
  if (x.conv_size != 0) fail("model", "mixer.conv_size: expected 0 (retnet has no convolution), found {}", x.conv_size);
}

std::vector<ParameterShape> retnet_shapes(const ModelConfig& m) {
  const int64_t d = m.hidden_size, key = m.mixer.heads * m.mixer.key_dim, value = m.mixer.heads * m.mixer.value_dim;
  std::vector<ParameterShape> out = {
      {"attn.q_proj.weight", {key, d}}, {"attn.k_proj.weight", {key, d}}, {"attn.v_proj.weight", {value, d}}};
  if (m.mixer.gate) out.push_back({"attn.g_proj.weight", {value, d}});
  out.push_back({"attn.o_proj.weight", {d, value}});
  out.push_back({m.mixer.gate ? "attn.g_norm_swish_gate.weight" : "attn.g_norm.weight", {m.mixer.value_dim}});
  return out;
}

void read_retnet(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  x.heads = 8;
  fields.integer({"num_heads"}, x.heads);
  x.key_dim = expanded_head(fields, "expand_k", 1, m.hidden_size, x.heads);
  x.value_dim = expanded_head(fields, "expand_v", 2, m.hidden_size, x.heads);
  fields.boolean({"use_output_gate"}, x.gate);
  fields.must_be_absent("use_short_conv", "convolutions in RetNet");
  fields.must_be_absent("feature_map", "feature maps of queries and keys");
  require_true(fields, "elementwise_affine");
  int64_t kv_heads = x.heads;
  fields.integer({"num_kv_heads"}, kv_heads);
  if (kv_heads != x.heads) fields.wrong("num_kv_heads", fmt::format("num_heads ({})", x.heads).c_str(), kv_heads);
}

void write_retnet(const ModelConfig& m, nlohmann::ordered_json& out) {
  const MixerConfig& x = m.mixer;
  out["attn_mode"] = "chunk";
  out["num_heads"] = x.heads;
  out["expand_k"] = ratio(x.heads * x.key_dim, m.hidden_size);
  out["expand_v"] = ratio(x.heads * x.value_dim, m.hidden_size);
  out["use_output_gate"] = x.gate;
  out["use_short_conv"] = false;
}

}  // namespace

const MixerKind kRetNet = {.type = MixerType::retnet,
                           .model_type = "retnet",
                           .architecture = "RetNetForCausalLM",
                           .hidden_ratio = 2,
                           .keys = {"conv_size", "gate"},  // conv_size accepts only 0
                           .defaults = {.conv_size = 0},
                           .make = make_mixer_as<RetNetMixer>,
                           .infer_sizes = infer_retnet_sizes,
                           .check = check_retnet,
                           .shapes = retnet_shapes,
                           .read = read_retnet,
                           .write = write_retnet};

}  // namespace lazy
