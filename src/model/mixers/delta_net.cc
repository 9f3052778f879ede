#include "model/mixers/delta_net.h"

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
#include "model/mixers/recurrence/short_convolution.h"
#include "ops/rms_norm.h"

namespace lazy {
namespace {

class DeltaNetMixer final : public Mixer {
 public:
  DeltaNetMixer(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&qkvg_, &rates_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  // Applies the short convolution with the parameter `weight`, if the layer has one, and then SiLU to a projection x.
  // `state` is the state of the convolution, which the function updates, or null.
  at::Tensor convolved(const char* weight, const at::Tensor& x, const ForwardOptions& options, at::Tensor* state) const;
  at::Tensor unit(const at::Tensor& heads) const;  // scales each vector of K elements in (B, L, H, K) to length 1

  int64_t heads_, key_dim_, value_dim_, chunk_;
  bool convolves_, gate_, decays_;
  double norm_eps_;
  Linear qkvg_, rates_, output_;  // rates_ has b_proj, which gives beta, and a_proj, which gives the decay
  ParameterTable table_;
  at::Tensor unit_weight_;
};

constexpr int64_t kDeltaNetChunk = 64;  // the fastest chunk size on a CPU

DeltaNetMixer::DeltaNetMixer(const ModelConfig& c, int64_t, at::Device device)
    : heads_(c.mixer.heads),
      key_dim_(c.mixer.key_dim),
      value_dim_(c.mixer.value_dim),
      chunk_(c.mixer.chunk > 0 ? c.mixer.chunk : kDeltaNetChunk),
      convolves_(c.mixer.conv_size > 0),
      gate_(c.mixer.gate),
      decays_(c.mixer.type == MixerType::gated_delta_net),
      norm_eps_(c.norm.eps) {
  const int64_t key = heads_ * key_dim_, value = heads_ * value_dim_;
  std::vector<int64_t> rows = {key, key, value}, rates = {heads_};
  if (gate_) rows.push_back(value);
  if (decays_) rates.push_back(heads_);
  qkvg_ = Linear(c.hidden_size, rows, device);
  // These projections are not parts of qkvg_, because their few columns would misalign the rows of its output.
  rates_ = Linear(c.hidden_size, rates, device);
  output_ = Linear(value, {c.hidden_size}, device);
  NamedTensors made = {{"attn.b_proj.weight", rates_.parts()[0]}, {"attn.o_proj.weight", output_.parts()[0]}};
  if (decays_) made.emplace_back("attn.a_proj.weight", rates_.parts()[1]);
  const char* names[] = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.g_proj.weight"};
  for (size_t i = 0; i < rows.size(); ++i) made.emplace_back(names[i], qkvg_.parts()[i]);
  table_ = ParameterTable((decays_ ? kGatedDeltaNet : kDeltaNet).shapes(c), made, device);
  unit_weight_ = at::full({key_dim_}, 1 / std::sqrt(static_cast<double>(key_dim_)),
                          at::TensorOptions().dtype(at::kFloat).device(device));
}

bool DeltaNetMixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& c,
                                   at::Generator& generator) const {
  if (name == "attn.A_log") {
    init_A_log(tensor, 0, 16, generator);
  } else if (name == "attn.dt_bias") {
    init_dt_bias(tensor, generator);
  } else if (name == "attn.o_norm.weight") {
    tensor.fill_(1);
  } else {
    return Mixer::init_parameter(name, tensor, c, generator);
  }
  return true;
}

at::Tensor DeltaNetMixer::convolved(const char* weight, const at::Tensor& x, const ForwardOptions& options,
                                    at::Tensor* state) const {
  if (!convolves_) return at::silu(x);
  recurrence::ConvolutionInputs in{.x = x, .weight = table_[weight]};
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  if (state) in.state = *state;
  const recurrence::Convolution y = recurrence::short_convolution(in);
  if (state) *state = y.state;
  return y.out;
}

// Returns x / sqrt(sum of x^2 + 1e-6) for each head x, computed as an RMSNorm whose weight and epsilon are scaled.
at::Tensor DeltaNetMixer::unit(const at::Tensor& heads) const {
  return ops::rms_norm(heads, unit_weight_, 1e-6 / static_cast<double>(key_dim_));
}

at::Tensor DeltaNetMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                                  at::Tensor*) const {
  const auto parts = qkvg_.forward(x), rates = rates_.forward(x);
  RecurrentState state(options, layer, 4);  // the states of the delta rule and of the convolutions of q, k and v
  const auto heads = [&](const char* weight, size_t part, int64_t dim) {
    return convolved(weight, parts[part], options, options.cache ? &state[1 + part] : nullptr)
        .unflatten(2, {heads_, dim});
  };
  recurrence::Inputs in{.q = unit(heads("attn.q_conv1d.weight", 0, key_dim_)),
                        .k = unit(heads("attn.k_conv1d.weight", 1, key_dim_)),
                        .v = heads("attn.v_conv1d.weight", 2, value_dim_),
                        .beta = at::sigmoid(rates[0].to(at::kFloat)),
                        .initial_state = state[0],
                        .scale = 1 / std::sqrt(static_cast<double>(key_dim_))};
  if (decays_) in.log_decay = log_decay(step_size(rates[1], table_["attn.dt_bias"]), table_["attn.A_log"]);
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  const recurrence::Outputs y = recurrence::delta_rule(in, chunk_);
  state[0] = y.state;
  state.save();
  return output_.forward(
      output_norm(y.out, table_["attn.o_norm.weight"], norm_eps_, gate_ ? parts[3] : at::Tensor()))[0];
}

void infer_delta_net_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, m.hidden_size / 128);
  if (x.key_dim == 0) x.key_dim = even_key_dim(m);
  if (x.value_dim == 0) x.value_dim = x.key_dim;
}

// The authors recommend six heads with a total key width of 3/4 hidden_size.
void infer_gated_delta_net_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  if (x.heads == 0) x.heads = 6;
  if (x.key_dim == 0) x.key_dim = even_key_dim(m, 3, 4);
  if (x.value_dim == 0) x.value_dim = 2 * x.key_dim;
}

void check_delta_net(const ModelConfig&) {}

std::vector<ParameterShape> delta_net_shapes(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  const int64_t d = m.hidden_size, key = x.heads * x.key_dim, value = x.heads * x.value_dim;
  const bool gated = m.mixer.type == MixerType::gated_delta_net;
  std::vector<ParameterShape> out;
  if (gated)
    out = {{"attn.A_log", {x.heads}, true, /*keep_fp32=*/true}, {"attn.dt_bias", {x.heads}, true, /*keep_fp32=*/true}};
  out.push_back({"attn.q_proj.weight", {key, d}});
  out.push_back({"attn.k_proj.weight", {key, d}});
  out.push_back({"attn.v_proj.weight", {value, d}});
  if (gated) out.push_back({"attn.a_proj.weight", {x.heads, d}});
  out.push_back({"attn.b_proj.weight", {x.heads, d}});
  if (x.conv_size > 0) {
    out.push_back({"attn.q_conv1d.weight", {key, 1, x.conv_size}});
    out.push_back({"attn.k_conv1d.weight", {key, 1, x.conv_size}});
    out.push_back({"attn.v_conv1d.weight", {value, 1, x.conv_size}});
  }
  if (x.gate) out.push_back({"attn.g_proj.weight", {value, d}});
  out.push_back({"attn.o_norm.weight", {x.value_dim}});
  out.push_back({"attn.o_proj.weight", {d, value}});
  return out;
}

void read_delta_nets(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  fields.boolean({"use_gate"}, x.gate);
  bool convolution = true;
  fields.boolean({"use_short_conv"}, convolution);
  fields.integer({"conv_size"}, x.conv_size);
  if (!convolution) x.conv_size = 0;
  fields.must_be_absent("allow_neg_eigval", "negative eigenvalues");
}

void read_delta_net(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  x.heads = 16;
  fields.integer({"num_heads"}, x.heads);
  x.key_dim = expanded_head(fields, "expand_k", 1, m.hidden_size, x.heads);
  x.value_dim = expanded_head(fields, "expand_v", 1, m.hidden_size, x.heads);
  require_value(fields, "qk_norm", "l2");
  require_value(fields, "qk_activation", "silu");
  require_true(fields, "use_beta");
  read_delta_nets(fields, m);
}

void read_gated_delta_net(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  x.heads = 6;
  fields.integer({"num_heads"}, x.heads);
  x.key_dim = 256;
  fields.integer({"head_dim"}, x.key_dim);
  x.value_dim = expanded(fields, "expand_v", 2, x.key_dim);
  int64_t value_heads = x.heads;
  fields.integer({"num_v_heads"}, value_heads);
  if (value_heads != x.heads) fields.wrong("num_v_heads", fmt::format("num_heads ({})", x.heads).c_str(), value_heads);
  std::string activation = "swish";
  fields.string({"output_gate_activation"}, activation);
  if (activation != "swish" && activation != "silu") fields.wrong("output_gate_activation", "swish", activation);
  read_delta_nets(fields, m);
}

void write_delta_nets(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["attn_mode"] = "chunk";
  out["num_heads"] = m.mixer.heads;
  out["use_gate"] = m.mixer.gate;
  out["use_short_conv"] = m.mixer.conv_size > 0;
  if (m.mixer.conv_size > 0) out["conv_size"] = m.mixer.conv_size;
}

void write_delta_net(const ModelConfig& m, nlohmann::ordered_json& out) {
  write_delta_nets(m, out);
  out["expand_k"] = ratio(m.mixer.heads * m.mixer.key_dim, m.hidden_size);
  out["expand_v"] = ratio(m.mixer.heads * m.mixer.value_dim, m.hidden_size);
}

void write_gated_delta_net(const ModelConfig& m, nlohmann::ordered_json& out) {
  write_delta_nets(m, out);
  out["head_dim"] = m.mixer.key_dim;
  out["expand_v"] = ratio(m.mixer.value_dim, m.mixer.key_dim);
}

}  // namespace

const MixerKind kDeltaNet = {.type = MixerType::delta_net,
                             .model_type = "delta_net",
                             .architecture = "DeltaNetForCausalLM",
                             .keys = {"conv_size", "gate"},
                             .defaults = {.gate = false},
                             .make = make_mixer_as<DeltaNetMixer>,
                             .infer_sizes = infer_delta_net_sizes,
                             .check = check_delta_net,
                             .shapes = delta_net_shapes,
                             .read = read_delta_net,
                             .write = write_delta_net};

const MixerKind kGatedDeltaNet = {.type = MixerType::gated_delta_net,
                                  .model_type = "gated_deltanet",
                                  .architecture = "GatedDeltaNetForCausalLM",
                                  .keys = {"conv_size", "gate"},
                                  .make = make_mixer_as<DeltaNetMixer>,
                                  .infer_sizes = infer_gated_delta_net_sizes,
                                  .check = check_delta_net,
                                  .shapes = delta_net_shapes,
                                  .read = read_gated_delta_net,
                                  .write = write_gated_delta_net};

}  // namespace lazy
