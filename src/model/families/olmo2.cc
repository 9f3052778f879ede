#include "model/config_json.h"
#include "model/families/families.h"

namespace lazy {
namespace {

using config_json::Fields;

void olmo2_defaults(ModelConfig& m) {
  m.family = ModelFamily::olmo2;
  m.norm.branch_norm = true;
  m.norm.eps = 1e-5;
  m.attention.qk_norm = m.attention.qk_norm_joint = true;
}

void read_olmo2(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  config_json::read_grouped_heads(fields, 0, m);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  m.max_length = 2048;
  fields.integer({"max_position_embeddings"}, m.max_length);
  m.bos_token_id = -1;  // default values of both ids; the caller then reads them from config.json
  m.eos_token_id = 50279;
  config_json::read_rope(fields, m);
  fields.boolean({"attention_bias"}, m.attention.qkv_bias);
  m.attention.output_bias = m.attention.qkv_bias;
  config_json::require_silu(fields);
}

void write_olmo2(const ModelConfig& m, nlohmann::ordered_json& out) {
  config_json::write_sizes(m, out);
  out["attention_bias"] = m.attention.qkv_bias;
  out["pad_token_id"] = nullptr;  // without this null, transformers uses a default id, which may exceed vocab_size
  config_json::write_rope(m, out);
}

void check_olmo2(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && !m.norm.post_norm && m.norm.branch_norm && m.norm.final_norm &&
                    m.mlp.kind == MlpKind::swiglu && !m.mlp.bias && m.has_plain_rope() && m.attention.qk_norm &&
                    m.attention.qk_norm_joint && m.positions.layer_bases.empty() && m.attention.window < 0 &&
                    m.attention.normalizer == Normalizer::softmax && m.attention.qkv_bias == m.attention.output_bias &&
                    m.attention.query_bias && m.attention.scale_scores && !m.attention.scale_by_layer &&
                    m.attention.distance_bias_window == 0;
  if (!fits)
    fail(
        "model",
        "olmo2: expected OLMo 2's architecture, with RoPE, softmax, no window and no distance bias, found positions {} "
        "and normalizer {}",
        name(m.positions.kind), name(m.attention.normalizer));
}

}  // namespace

const Family kOlmo2 = {ModelFamily::olmo2, "Olmo2ForCausalLM", {},          olmo2_defaults,
                       read_olmo2,         write_olmo2,        check_olmo2, plain_tensors};

}  // namespace lazy
