#include "model/mixers/delta_net_kind.h"

#include <algorithm>

#include "core/error.h"
#include "model/mixers/expansion.h"

namespace lazy {
namespace {

void infer_delta_net_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, m.hidden_size / 128);
  if (x.key_dim == 0) x.key_dim = even_key_dim(m);
  if (x.value_dim == 0) x.value_dim = x.key_dim;
}

// Six heads whose keys have three quarters of hidden_size in all, as its authors recommend.
void infer_gated_delta_net_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  if (x.heads == 0) x.heads = 6;
  if (x.key_dim == 0) x.key_dim = even_key_dim(m, 3, 4);
  if (x.value_dim == 0) x.value_dim = 2 * x.key_dim;
}

void check_delta_net(const ModelConfig&) {}

std::vector<ParameterShape> delta_net_shapes(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  const int64_t d = m.hidden_size, key = x.heads * x.key_dim, value = x.heads * x.value_dim;
  const bool gated = m.mixer == kGatedDeltaNet.name;
  std::vector<ParameterShape> out;
  if (gated) out = {{"attn.A_log", {x.heads}, true, /*wide=*/true}, {"attn.dt_bias", {x.heads}, true, /*wide=*/true}};
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
  MixerConfig& x = m.mix;
  fields.boolean({"use_gate"}, x.gate);
  bool convolution = true;
  fields.boolean({"use_short_conv"}, convolution);
  fields.integer({"conv_size"}, x.conv_size);
  if (!convolution) x.conv_size = 0;
  fields.must_be_absent("allow_neg_eigval", "negative eigenvalues");
}

void read_delta_net(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mix;
  x.heads = 16;
  fields.integer({"num_heads"}, x.heads);
  x.key_dim = expanded_head(fields, "expand_k", 1, m.hidden_size, x.heads);
  x.value_dim = expanded_head(fields, "expand_v", 1, m.hidden_size, x.heads);
  must_be_called(fields, "qk_norm", "l2");
  must_be_called(fields, "qk_activation", "silu");
  must_be_on(fields, "use_beta");
  read_delta_nets(fields, m);
}

void read_gated_delta_net(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mix;
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
  out["num_heads"] = m.mix.heads;
  out["use_gate"] = m.mix.gate;
  out["use_short_conv"] = m.mix.conv_size > 0;
  if (m.mix.conv_size > 0) out["conv_size"] = m.mix.conv_size;
}

void write_delta_net(const ModelConfig& m, nlohmann::ordered_json& out) {
  write_delta_nets(m, out);
  out["expand_k"] = ratio(m.mix.heads * m.mix.key_dim, m.hidden_size);
  out["expand_v"] = ratio(m.mix.heads * m.mix.value_dim, m.hidden_size);
}

void write_gated_delta_net(const ModelConfig& m, nlohmann::ordered_json& out) {
  write_delta_nets(m, out);
  out["head_dim"] = m.mix.key_dim;
  out["expand_v"] = ratio(m.mix.value_dim, m.mix.key_dim);
}

}  // namespace

const MixerKind kDeltaNet = {.name = "delta_net",
                             .model_type = "delta_net",
                             .architecture = "DeltaNetForCausalLM",
                             .keys = {"conv_size", "gate"},
                             .defaults = {.gate = false},
                             .infer_sizes = infer_delta_net_sizes,
                             .check = check_delta_net,
                             .shapes = delta_net_shapes,
                             .read = read_delta_net,
                             .write = write_delta_net};

const MixerKind kGatedDeltaNet = {.name = "gated_delta_net",
                                  .model_type = "gated_deltanet",
                                  .architecture = "GatedDeltaNetForCausalLM",
                                  .keys = {"conv_size", "gate"},
                                  .infer_sizes = infer_gated_delta_net_sizes,
                                  .check = check_delta_net,
                                  .shapes = delta_net_shapes,
                                  .read = read_gated_delta_net,
                                  .write = write_gated_delta_net};

}  // namespace lazy
