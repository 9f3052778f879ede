#include "model/families/families.h"

#include "model/config_json.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using config_json::Fields;

void gpt2_defaults(ModelConfig& m) {
  m.family = ModelFamily::gpt2;
  m.norm.kind = NormKind::layer;
  m.norm.eps = 1e-5;
  m.positions.kind = PositionKind::learned;
  m.mlp.kind = MlpKind::gelu_tanh;
  m.attention.qkv_bias = m.attention.output_bias = m.mlp.bias = true;
  m.tie_embeddings = true;
  m.scaled_residual_init = true;
}

// Reads activation_function. Several activation names of transformers denote the same function.
MlpKind activation_from(const Fields& fields) {
  std::string name = "gelu_new";
  fields.string({"activation_function"}, name);
  if (config_json::is_gelu_tanh(name)) return MlpKind::gelu_tanh;
  if (name == "gelu" || name == "gelu_python") return MlpKind::gelu;
  if (name == "relu") return MlpKind::relu;
  fail(config_json::kOperation,
       "{}: activation_function: expected relu or a variant of GELU, such as gelu_new, found '{}'", fields.file(),
       to_valid_utf8(name.substr(0, 80)));
}

void read_gpt2(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"n_embd", "hidden_size"}, m.hidden_size);
  fields.required_integer({"n_layer", "num_hidden_layers"}, m.num_layers);
  fields.required_integer({"n_head", "num_attention_heads"}, m.attention.num_heads);
  config_json::divide_heads(fields, "n_head", m);
  m.attention.num_kv_heads = m.attention.num_heads;
  m.max_length = 1024;
  fields.integer({"n_positions", "max_position_embeddings"}, m.max_length);
  fields.integer({"n_inner"}, m.mlp.intermediate_size);
  fields.number({"layer_norm_epsilon"}, m.norm.eps);
  m.mlp.kind = activation_from(fields);
  fields.boolean({"scale_attn_weights"}, m.attention.scale_scores);
  fields.boolean({"scale_attn_by_inverse_layer_idx"}, m.attention.scale_by_layer);
  // The key reorder_and_upcast_attn is ignored. It selects fp32 scores, and this program always computes scores in
  // fp32.
  m.bos_token_id = m.eos_token_id = 50256;
  fields.boolean({"query_bias"}, m.attention.query_bias);
}

void write_gpt2(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["n_embd"] = m.hidden_size;
  out["n_layer"] = m.num_layers;
  out["n_head"] = m.attention.num_heads;
  out["n_positions"] = m.max_length;
  out["n_inner"] = m.intermediate();
  out["activation_function"] = m.mlp.kind == MlpKind::gelu_tanh ? "gelu_new" : name(m.mlp.kind);
  out["layer_norm_epsilon"] = m.norm.eps;
  out["scale_attn_weights"] = m.attention.scale_scores;
  out["scale_attn_by_inverse_layer_idx"] = m.attention.scale_by_layer;
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out[dropout] = 0.0;
  if (!m.attention.query_bias)
    out["query_bias"] = false;  // only this program reads query_bias; transformers ignores it
}

void check_gpt2(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::layer && m.positions.kind == PositionKind::learned &&
                    m.mlp.kind != MlpKind::swiglu && m.attention.qkv_bias && m.attention.output_bias && m.mlp.bias &&
                    !m.attention.qk_norm && m.attention.normalizer == Normalizer::softmax &&
                    m.attention.distance_bias_window == 0 && m.attention.window < 0;
  if (!fits) {
    fail("model",
         "gpt2: expected GPT-2's architecture, with learned positions, softmax, no distance bias and no window, found "
         "positions {}, normalizer {}, distance_bias_window {} and window_size {}",
         name(m.positions.kind), name(m.attention.normalizer), m.attention.distance_bias_window, m.attention.window);
  }
  if (m.attention.num_kv_heads != m.attention.num_heads)
    fail("model", "gpt2 requires num_kv_heads = num_heads ({}), found {}", m.attention.num_heads,
         m.attention.num_kv_heads);
  if (m.attention.num_heads * m.attention.head_dim != m.hidden_size) {
    fail("model", "gpt2 requires head_dim = hidden_size / num_heads ({} / {}), found {}", m.hidden_size,
         m.attention.num_heads, m.attention.head_dim);
  }
}

std::vector<StoredTensor> gpt2_tensors(const ModelConfig& m) {
  const CheckpointNames names(m);
  const int64_t d = m.hidden_size, inner = m.intermediate();
  std::vector<StoredTensor> out = {{"transformer.wte.weight", {m.vocab_size, d}, {names.embedding}},
                                   {"transformer.wpe.weight", {m.max_length, d}, {names.positions}}};
  for (int64_t i = 0; i < m.num_layers; ++i) {
    const std::string layer = "transformer.h." + std::to_string(i) + ".", ours = names.layer(i);
    const auto plain = [&](const char* name, int64_t size, const std::string& part) {
      out.push_back({layer + name, {size}, {ours + part}});
    };
    const auto matrix = [&](const char* name, int64_t in, int64_t width, std::vector<std::string> parts) {
      for (std::string& part : parts) part = ours + part;
      out.push_back({layer + name, {in, width}, std::move(parts), Interleaving::transposed});
    };
    plain("ln_1.weight", d, names.mixer_norm);
    plain("ln_1.bias", d, names.mixer_norm_bias);
    matrix("attn.c_attn.weight", d, 3 * d, {names.q, names.k, names.v});
    out.push_back({layer + "attn.c_attn.bias",
                   {3 * d},
                   {ours + names.q_bias, ours + names.k_bias, ours + names.v_bias},
                   Interleaving::transposed});
    matrix("attn.c_proj.weight", d, d, {names.o});
    plain("attn.c_proj.bias", d, names.o_bias);
    plain("ln_2.weight", d, names.mlp_norm);
    plain("ln_2.bias", d, names.mlp_norm_bias);
    matrix("mlp.c_fc.weight", d, inner, {names.up});
    plain("mlp.c_fc.bias", inner, names.up_bias);
    matrix("mlp.c_proj.weight", inner, d, {names.down});
    plain("mlp.c_proj.bias", d, names.down_bias);
  }
  out.push_back({"transformer.ln_f.weight", {d}, {names.final_norm}});
  out.push_back({"transformer.ln_f.bias", {d}, {names.final_norm_bias}});
  if (!m.tie_embeddings) out.push_back({names.head, {m.vocab_size, d}, {names.head}});
  return out;
}

}  // namespace

const Family kGpt2 = {ModelFamily::gpt2, "GPT2LMHeadModel", {".attn.bias", ".attn.masked_bias"},
                      gpt2_defaults,     read_gpt2,         write_gpt2,
                      check_gpt2,        gpt2_tensors};

}  // namespace lazy
