#include "model/families/families.h"

#include "model/config_json.h"

namespace lazy {
namespace {

using config_json::Fields;

void gpt_oss_defaults(ModelConfig& m) {
  m.family = ModelFamily::gpt_oss;
  m.attention.normalizer = Normalizer::softmax_sink;
  m.norm.eps = 1e-5;
  m.mlp.kind = MlpKind::experts;
  m.attention.qkv_bias = m.attention.output_bias = true;
}

void read_gpt_oss(const Fields& fields, ModelConfig& m) {
  if (const nlohmann::json* quantization = fields.find({"quantization_config"})) {
    const auto method = quantization->is_object() ? quantization->find("quant_method") : quantization->end();
    if (!quantization->is_object() || method == quantization->end() || *method != "mxfp4") {
      fields.wrong("quantization_config", "quant_method mxfp4", *quantization);
    }
  }
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  fields.required_integer({"num_attention_heads"}, m.attention.num_heads);
  m.attention.num_kv_heads = 8;
  m.attention.head_dim = 64;
  fields.integer({"num_key_value_heads"}, m.attention.num_kv_heads);
  fields.integer({"head_dim"}, m.attention.head_dim);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.required_integer({"num_local_experts", "num_experts"}, m.mlp.experts);
  m.mlp.experts_per_token = 4;
  fields.integer({"num_experts_per_tok"}, m.mlp.experts_per_token);
  fields.number({"swiglu_alpha"}, m.mlp.swiglu_alpha);
  fields.number({"swiglu_limit"}, m.mlp.swiglu_limit);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  m.max_length = 131072;
  fields.integer({"max_position_embeddings"}, m.max_length);
  m.positions.rope_base = 150000;
  const nlohmann::json* scaling = fields.find({"rope_scaling"});
  if ((!scaling || scaling->empty()) && !fields.find({"rope_parameters"})) {
    m.positions.rope_scaling.type = "yarn";
    m.positions.rope_scaling.factor = 32;
    m.positions.rope_scaling.original_length = 4096;
    m.positions.rope_scaling.truncate = false;
  }
  config_json::read_rope(fields, m);
  config_json::read_window(fields, "gpt_oss", m);
  fields.boolean({"attention_bias"}, m.attention.qkv_bias);
  m.attention.output_bias = m.attention.qkv_bias;
  config_json::require_silu(fields);
}

void write_gpt_oss(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["hidden_size"] = m.hidden_size;
  out["intermediate_size"] = m.intermediate();
  out["num_hidden_layers"] = m.num_layers;
  out["num_attention_heads"] = m.attention.num_heads;
  out["num_key_value_heads"] = m.attention.num_kv_heads;
  out["head_dim"] = m.attention.head_dim;
  out["num_local_experts"] = m.mlp.experts;
  out["num_experts_per_tok"] = m.mlp.experts_per_token;
  out["swiglu_alpha"] = m.mlp.swiglu_alpha;
  out["swiglu_limit"] = m.mlp.swiglu_limit;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm.eps;
  out["max_position_embeddings"] = m.max_length;
  out["attention_bias"] = m.attention.qkv_bias;
  config_json::write_rope(m, out);
  config_json::write_window(m, out);
}

void check_gpt_oss(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && m.mlp.kind == MlpKind::experts && m.has_plain_rope() &&
                    m.attention.normalizer == Normalizer::softmax_sink && !m.attention.qk_norm &&
                    m.attention.qkv_bias == m.attention.output_bias && m.attention.query_bias &&
                    m.attention.scale_scores && !m.attention.scale_by_layer && m.attention.distance_bias_window == 0;
  if (!fits)
    fail("model",
         "gpt_oss: expected the architecture of gpt-oss, with RoPE, softmax_sink and no distance bias, found positions "
         "{} and normalizer {}",
         name(m.positions.kind), name(m.attention.normalizer));
  if (m.mlp.experts < 1 || m.mlp.experts > 1 << 14)
    fail("model", "num_local_experts: expected 1 to 16384, found {}", m.mlp.experts);
  if (m.mlp.experts_per_token < 1 || m.mlp.experts_per_token > m.mlp.experts) {
    fail("model", "num_experts_per_tok: expected 1 to num_local_experts ({}), found {}", m.mlp.experts,
         m.mlp.experts_per_token);
  }
  if (!(m.mlp.swiglu_limit > 0) || !(m.mlp.swiglu_alpha > 0)) {
    fail("model", "expected swiglu_limit and swiglu_alpha to be more than 0, found swiglu_limit {} and swiglu_alpha {}",
         m.mlp.swiglu_limit, m.mlp.swiglu_alpha);
  }
}

}  // namespace

const Family kGptOss = {ModelFamily::gpt_oss, "GptOssForCausalLM", {},
                        gpt_oss_defaults,     read_gpt_oss,        write_gpt_oss,
                        check_gpt_oss,        plain_tensors,       /*quantized=*/true};

}  // namespace lazy
