#include "model/mixers/ttt_kind.h"

#include "core/error.h"
#include "model/config_json.h"

namespace lazy {
namespace {

constexpr char kLinearName[] = "ttt_linear", kMlpName[] = "ttt_mlp";
// The inner learning rate, fixed: 1 for the linear model, 0.1 for the MLP (the paper's).
double base_rate(const ModelConfig& m) { return m.mixer == kMlpName ? 0.1 : 1; }

void infer_ttt_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  infer_square_heads_sizes(m);
  if (x.chunk == 0) x.chunk = 16;
}

void check_ttt(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  check_square_heads(m);
  if (x.key_dim % 2 != 0)
    fail("model", "mixer.key_dim: expected an even number, RoPE turns pairs, found {}", x.key_dim);
}

std::vector<ParameterShape> shapes_ttt(const ModelConfig& m) {
  const int64_t d = m.hidden_size, H = m.mix.heads, D = m.mix.key_dim, inner = m.mixer == kMlpName ? 4 * D : D;
  const std::string at = "seq_modeling_block.";
  std::vector<ParameterShape> out = {{.name = at + "learnable_token_idx", .shape = {m.mix.chunk}, .decayed = true},
                                     {.name = at + "ttt_norm_weight", .shape = {H, D}, .decayed = false},
                                     {.name = at + "ttt_norm_bias", .shape = {H, D}, .decayed = false},
                                     {at + "learnable_ttt_lr_weight", {H, 1, d}},
                                     {.name = at + "learnable_ttt_lr_bias", .shape = {H, 1}, .decayed = false},
                                     {at + "W1", {H, D, inner}},
                                     {at + "b1", {H, 1, inner}}};
  if (m.mixer == kMlpName) {
    out.push_back({at + "W2", {H, inner, D}});
    out.push_back({at + "b2", {H, 1, D}});
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) out.push_back({at + name + ".weight", {d, d}});
  if (m.mix.gate) out.push_back({at + "g_proj.weight", {d, d}});
  out.push_back({at + "post_norm.weight", {d}});
  out.push_back({at + "post_norm.bias", {d}});
  return out;
}

void read_ttt(const config_json::Fields& fields, ModelConfig& m) {
  std::string type = "linear";
  fields.string({"ttt_layer_type"}, type);
  if (type != "linear" && type != "mlp")
    fields.wrong("ttt_layer_type", "linear or mlp", *fields.find({"ttt_layer_type"}));
  m.mixer = type == "mlp" ? kMlpName : kLinearName;
  fields.required_integer({"num_attention_heads"}, m.mix.heads);
  if (m.mix.heads < 1 || m.hidden_size % m.mix.heads != 0) {
    fields.wrong("num_attention_heads", "a divisor of hidden_size", *fields.find({"num_attention_heads"}));
  }
  fields.integer({"mini_batch_size"}, m.mix.chunk);
  m.mix.gate = false;
  fields.boolean({"use_gate"}, m.mix.gate);
  fields.must_be_absent("share_qk", "queries and keys of one projection");
  fields.must_be_absent("pre_conv", "a convolution before the block");
  double rate = base_rate(m);
  fields.number({"ttt_base_lr"}, rate);
  if (rate != base_rate(m)) fields.wrong("ttt_base_lr", type == "mlp" ? "0.1" : "1", *fields.find({"ttt_base_lr"}));
}

void write_ttt(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["ttt_layer_type"] = m.mixer == kMlpName ? "mlp" : "linear";
  out["num_attention_heads"] = m.mix.heads;
  out["mini_batch_size"] = m.mix.chunk;
  out["rope_theta"] = m.rope_base;
  out["ttt_base_lr"] = base_rate(m);
  out["use_gate"] = m.mix.gate;
  out["share_qk"] = false;
  out["pre_conv"] = false;
}

MixerKind ttt_kind(const char* name) {
  return {.name = name,
          .model_type = "ttt",
          .architecture = "TTTForCausalLM",
          .rope = true,
          .keys = {"gate"},
          .infer_sizes = infer_ttt_sizes,
          .check = check_ttt,
          .shapes = shapes_ttt,
          .read = read_ttt,
          .write = write_ttt};
}

}  // namespace

const MixerKind kTttLinear = ttt_kind(kLinearName), kTttMlp = ttt_kind(kMlpName);

}  // namespace lazy
