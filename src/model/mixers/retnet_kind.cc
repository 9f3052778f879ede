#include "model/mixers/retnet_kind.h"

#include <algorithm>

#include "core/error.h"
#include "model/mixers/expansion.h"

namespace lazy {
namespace {

void infer_retnet_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, m.hidden_size / 256);
  if (x.key_dim == 0) x.key_dim = even_key_dim(m);
  if (x.value_dim == 0) x.value_dim = 2 * x.key_dim;
}

void check_retnet(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  if (x.key_dim % 2 != 0)
    fail("model", "mixer.key_dim: expected an even number, RoPE turns pairs, found {}", x.key_dim);
  if (x.conv_size != 0) fail("model", "mixer.conv_size: expected 0, retnet has no convolution, found {}", x.conv_size);
}

std::vector<ParameterShape> retnet_shapes(const ModelConfig& m) {
  const int64_t d = m.hidden_size, key = m.mix.heads * m.mix.key_dim, value = m.mix.heads * m.mix.value_dim;
  std::vector<ParameterShape> out = {
      {"attn.q_proj.weight", {key, d}}, {"attn.k_proj.weight", {key, d}}, {"attn.v_proj.weight", {value, d}}};
  if (m.mix.gate) out.push_back({"attn.g_proj.weight", {value, d}});
  out.push_back({"attn.o_proj.weight", {d, value}});
  out.push_back({m.mix.gate ? "attn.g_norm_swish_gate.weight" : "attn.g_norm.weight", {m.mix.value_dim}});
  return out;
}

void read_retnet(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mix;
  x.heads = 8;
  fields.integer({"num_heads"}, x.heads);
  x.key_dim = expanded_head(fields, "expand_k", 1, m.hidden_size, x.heads);
  x.value_dim = expanded_head(fields, "expand_v", 2, m.hidden_size, x.heads);
  fields.boolean({"use_output_gate"}, x.gate);
  fields.must_be_absent("use_short_conv", "convolutions in RetNet");
  fields.must_be_absent("feature_map", "feature maps of queries and keys");
  must_be_on(fields, "elementwise_affine");
  int64_t kv_heads = x.heads;
  fields.integer({"num_kv_heads"}, kv_heads);
  if (kv_heads != x.heads) fields.wrong("num_kv_heads", fmt::format("num_heads ({})", x.heads).c_str(), kv_heads);
}

void write_retnet(const ModelConfig& m, nlohmann::ordered_json& out) {
  const MixerConfig& x = m.mix;
  out["attn_mode"] = "chunk";
  out["num_heads"] = x.heads;
  out["expand_k"] = ratio(x.heads * x.key_dim, m.hidden_size);
  out["expand_v"] = ratio(x.heads * x.value_dim, m.hidden_size);
  out["use_output_gate"] = x.gate;
  out["use_short_conv"] = false;
}

}  // namespace

const MixerKind kRetNet = {.name = "retnet",
                           .model_type = "retnet",
                           .architecture = "RetNetForCausalLM",
                           .hidden_ratio = 2,
                           .keys = {"conv_size", "gate"},  // of conv_size it says what the one value is
                           .defaults = {.conv_size = 0},
                           .infer_sizes = infer_retnet_sizes,
                           .check = check_retnet,
                           .shapes = retnet_shapes,
                           .read = read_retnet,
                           .write = write_retnet};

}  // namespace lazy
