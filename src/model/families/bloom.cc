#include "model/families/families.h"

#include "model/config_json.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using config_json::Fields;

void bloom_defaults(ModelConfig& m) {
  m.family = ModelFamily::bloom;
  m.norm.kind = NormKind::layer;
  m.norm.eps = 1e-5;
  m.norm.embedding_norm = true;
  m.positions.kind = PositionKind::alibi;
  m.mlp.kind = MlpKind::gelu_tanh;
  m.attention.qkv_bias = m.attention.output_bias = m.mlp.bias = true;
  m.tie_embeddings = true;
}

void read_bloom(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"n_embed", "hidden_size"}, m.hidden_size);
  fields.required_integer({"n_layer", "num_hidden_layers"}, m.num_layers);
  fields.required_integer({"n_head", "num_attention_heads"}, m.attention.num_heads);
  config_json::divide_heads(fields, "n_head", m);
  m.attention.num_kv_heads = m.attention.num_heads;
  m.max_length = 2048;
  fields.integer({"seq_length"}, m.max_length);
  fields.number({"layer_norm_epsilon"}, m.norm.eps);
}

void write_bloom(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["hidden_size"] = m.hidden_size;
  out["n_layer"] = m.num_layers;
  out["n_head"] = m.attention.num_heads;
  out["seq_length"] = m.max_length;
  out["layer_norm_epsilon"] = m.norm.eps;
  out["apply_residual_connection_post_layernorm"] = false;
}

void check_bloom(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::layer && m.norm.embedding_norm &&
                    m.positions.kind == PositionKind::alibi && !m.positions.alibi_trainable &&
                    m.mlp.kind == MlpKind::gelu_tanh && m.attention.qkv_bias && m.attention.output_bias && m.mlp.bias &&
                    m.attention.query_bias && m.attention.scale_scores && !m.attention.scale_by_layer &&
                    !m.attention.qk_norm && m.attention.normalizer == Normalizer::softmax &&
                    m.attention.distance_bias_window == 0 && m.attention.window < 0;
  if (!fits)
    fail("model",
         "bloom: expected BLOOM's architecture, with ALiBi, softmax, GELU and no window, found positions {}, "
         "normalizer {} and mlp_kind {}",
         name(m.positions.kind), name(m.attention.normalizer), name(m.mlp.kind));
  if (m.attention.num_kv_heads != m.attention.num_heads ||
      m.attention.num_heads * m.attention.head_dim != m.hidden_size || m.intermediate() != 4 * m.hidden_size) {
    fail("model",
         "bloom: expected num_kv_heads = num_heads, head_dim = hidden_size / num_heads and an MLP width of "
         "4 * hidden_size, found num_kv_heads {}, head_dim {} and MLP width {}",
         m.attention.num_kv_heads, m.attention.head_dim, m.intermediate());
  }
}

// The tensors of a BLOOM checkpoint. The slopes of ALiBi are not stored; they are computed from the number of heads.
std::vector<StoredTensor> bloom_tensors(const ModelConfig& m) {
  const CheckpointNames names(m);
  const int64_t d = m.hidden_size, inner = m.intermediate();
  std::vector<StoredTensor> out = {{"transformer.word_embeddings.weight", {m.vocab_size, d}, {names.embedding}},
                                   {"transformer.word_embeddings_layernorm.weight", {d}, {names.embedding_norm}},
                                   {"transformer.word_embeddings_layernorm.bias", {d}, {names.embedding_norm_bias}}};
  for (int64_t i = 0; i < m.num_layers; ++i) {
    const std::string layer = "transformer.h." + std::to_string(i) + ".", ours = names.layer(i);
    const auto plain = [&](const char* name, std::vector<int64_t> shape, const std::string& part) {
      out.push_back({layer + name, std::move(shape), {ours + part}});
    };
    plain("input_layernorm.weight", {d}, names.mixer_norm);
    plain("input_layernorm.bias", {d}, names.mixer_norm_bias);
    out.push_back({layer + "self_attention.query_key_value.weight",
                   {3 * d, d},
                   {ours + names.q, ours + names.k, ours + names.v},
                   Interleaving::by_head,
                   m.attention.num_heads});
    out.push_back({layer + "self_attention.query_key_value.bias",
                   {3 * d},
                   {ours + names.q_bias, ours + names.k_bias, ours + names.v_bias},
                   Interleaving::by_head,
                   m.attention.num_heads});
    plain("self_attention.dense.weight", {d, d}, names.o);
    plain("self_attention.dense.bias", {d}, names.o_bias);
    plain("post_attention_layernorm.weight", {d}, names.mlp_norm);
    plain("post_attention_layernorm.bias", {d}, names.mlp_norm_bias);
    plain("mlp.dense_h_to_4h.weight", {inner, d}, names.up);
    plain("mlp.dense_h_to_4h.bias", {inner}, names.up_bias);
    plain("mlp.dense_4h_to_h.weight", {d, inner}, names.down);
    plain("mlp.dense_4h_to_h.bias", {d}, names.down_bias);
  }
  out.push_back({"transformer.ln_f.weight", {d}, {names.final_norm}});
  out.push_back({"transformer.ln_f.bias", {d}, {names.final_norm_bias}});
  if (!m.tie_embeddings) out.push_back({names.head, {m.vocab_size, d}, {names.head}});
  return out;
}

}  // namespace

const Family kBloom = {ModelFamily::bloom, "BloomForCausalLM", {},          bloom_defaults,
                       read_bloom,         write_bloom,        check_bloom, bloom_tensors};

}  // namespace lazy
