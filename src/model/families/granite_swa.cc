#include "model/families/families.h"

#include <algorithm>
#include <cmath>

#include "model/config_json.h"

namespace lazy {
namespace {

using config_json::Fields;

void granite_swa_defaults(ModelConfig& m) {
  m.family = ModelFamily::granite_swa;
  m.attention.normalizer = Normalizer::softmax_sink;
  m.attention.multiplier = 1;
  m.norm.eps = 1e-5;
}

void read_granite_swa(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  config_json::read_grouped_heads(fields, 4, m);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  m.max_length = 8192;
  fields.integer({"max_position_embeddings"}, m.max_length);
  m.tie_embeddings = true;  // default values of this field and both ids; the caller then reads config.json
  m.bos_token_id = m.eos_token_id = 100257;
  config_json::read_rope(fields, m);
  if (const nlohmann::json* bases = fields.find({"layer_rope_theta"})) {
    if (!bases->is_array() || static_cast<int64_t>(bases->size()) != m.num_layers ||
        !std::all_of(bases->begin(), bases->end(), [](const nlohmann::json& x) { return x.is_number(); })) {
      fields.wrong("layer_rope_theta", "a list of num_hidden_layers numbers", *bases);
    }
    m.positions.layer_bases = bases->get<std::vector<double>>();
  }
  config_json::read_window(fields, "granite_swa", m);
  fields.number({"embedding_multiplier"}, m.multipliers.embedding);
  fields.number({"residual_multiplier"}, m.multipliers.branch);
  fields.number({"attention_multiplier"}, m.attention.multiplier);
  fields.number({"logits_scaling"}, m.multipliers.logits_divisor);
  fields.boolean({"attention_bias"}, m.attention.qkv_bias);
  m.attention.output_bias = m.attention.qkv_bias;
  config_json::require_silu(fields);
}

void write_granite_swa(const ModelConfig& m, nlohmann::ordered_json& out) {
  config_json::write_sizes(m, out);
  out["attention_bias"] = m.attention.qkv_bias;
  out["mlp_bias"] = false;
  out["embedding_multiplier"] = m.multipliers.embedding;
  out["residual_multiplier"] = m.multipliers.branch;
  out["attention_multiplier"] = m.score_scale(0);
  out["logits_scaling"] = m.multipliers.logits_divisor;
  config_json::write_rope(m, out);
  if (!m.positions.layer_bases.empty()) out["layer_rope_theta"] = m.positions.layer_bases;
  config_json::write_window(m, out);
}

void check_granite_swa(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && !m.norm.post_norm && m.norm.final_norm &&
                    m.mlp.kind == MlpKind::swiglu && !m.mlp.bias && m.has_plain_rope() &&
                    m.attention.normalizer == Normalizer::softmax_sink && !m.attention.qk_norm &&
                    m.attention.qkv_bias == m.attention.output_bias && m.attention.query_bias &&
                    m.attention.scale_scores && !m.attention.scale_by_layer && m.attention.distance_bias_window == 0;
  if (!fits)
    fail("model",
         "granite_swa: expected GraniteSWA's architecture, with RoPE, softmax_sink and no distance bias, found "
         "positions {} and normalizer {}",
         name(m.positions.kind), name(m.attention.normalizer));
  const std::vector<double>& bases = m.positions.layer_bases;
  if (!bases.empty() && static_cast<int64_t>(bases.size()) != m.num_layers)
    fail("model", "layer_rope_theta: expected num_hidden_layers ({}) numbers, found {}", m.num_layers, bases.size());
  for (const double base : bases) {
    if (base != 0 && !(base > 1 && std::isfinite(base)))
      fail("model", "layer_rope_theta: expected more than 1, or 0 for a layer without RoPE, found {}", base);
  }
  for (const auto& [field, value] : {std::pair{"embedding_multiplier", m.multipliers.embedding},
                                     {"residual_multiplier", m.multipliers.branch},
                                     {"attention_multiplier", m.attention.multiplier},
                                     {"logits_scaling", m.multipliers.logits_divisor}}) {
    if (value == 0 || !std::isfinite(value))
      fail("model", "{}: expected a finite number other than 0, found {}", field, value);
  }
}

}  // namespace

const Family kGraniteSwa = {
    ModelFamily::granite_swa, "GraniteSWAForCausalLM", {},           granite_swa_defaults, read_granite_swa,
    write_granite_swa,        check_granite_swa,       plain_tensors};

}  // namespace lazy
