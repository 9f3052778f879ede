#include "model/families/families.h"

#include <algorithm>

#include "model/config_json.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using config_json::Fields;

void smollm3_defaults(ModelConfig& m) {
  m.family = ModelFamily::smollm3;
  m.positions.rope_base = 2e6;
}

// Returns the RoPE base of each layer, or 0 for layers without RoPE. A layer has no RoPE if its entry in no_rope_layers
// is 0. If the list is absent, every no_rope_layer_interval-th layer has no RoPE.
std::vector<double> read_layer_bases(const Fields& fields, const ModelConfig& m) {
  // num_hidden_layers has not been validated at this point, so the length of the list is limited here.
  const auto layers = static_cast<size_t>(std::clamp(m.num_layers, int64_t{0}, int64_t{1} << 14));
  std::vector<double> bases(layers, m.positions.rope_base);
  if (const nlohmann::json* rotated = fields.find({"no_rope_layers"})) {
    if (!rotated->is_array() || rotated->size() < layers ||
        !std::all_of(rotated->begin(), rotated->end(), [](const auto& x) { return x.is_number_integer(); })) {
      fields.wrong("no_rope_layers", "a list with an integer for each of num_hidden_layers layers", *rotated);
    }
    for (size_t i = 0; i < layers; ++i) {
      if ((*rotated)[i] == 0) bases[i] = 0;
    }
    return bases;
  }
  int64_t interval = 4;
  fields.integer({"no_rope_layer_interval"}, interval);
  if (interval < 1) fields.wrong("no_rope_layer_interval", "at least 1", interval);
  for (size_t i = 0; i < layers; ++i) {
    if ((static_cast<int64_t>(i) + 1) % interval == 0) bases[i] = 0;
  }
  return bases;
}

void read_smollm3(const Fields& fields, ModelConfig& m) {
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  config_json::read_grouped_heads(fields, 4, m);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  m.max_length = 32768;
  fields.integer({"max_position_embeddings"}, m.max_length);
  m.tie_embeddings = true;  // default values of this field and both ids; the caller then reads config.json
  m.bos_token_id = 128000;
  m.eos_token_id = 128001;
  config_json::read_rope(fields, m);
  m.positions.layer_bases = read_layer_bases(fields, m);
  config_json::read_window(fields, "smollm3", m);
  fields.boolean({"attention_bias"}, m.attention.qkv_bias);
  m.attention.output_bias = m.attention.qkv_bias;
  config_json::require_silu(fields);
}

void write_smollm3(const ModelConfig& m, nlohmann::ordered_json& out) {
  config_json::write_sizes(m, out);
  out["attention_bias"] = m.attention.qkv_bias;
  out["mlp_bias"] = false;
  out["pad_token_id"] = nullptr;  // without this null, transformers uses a default id, which may exceed vocab_size
  config_json::write_rope(m, out);
  out["no_rope_layers"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < m.num_layers; ++i) out["no_rope_layers"].push_back(m.rope_base_of(i) == 0 ? 0 : 1);
  config_json::write_window(m, out);
}

void check_smollm3(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && !m.norm.post_norm && !m.norm.branch_norm && m.norm.final_norm &&
                    m.mlp.kind == MlpKind::swiglu && !m.mlp.bias && m.has_plain_rope() && !m.attention.qk_norm &&
                    m.attention.normalizer == Normalizer::softmax && m.attention.qkv_bias == m.attention.output_bias &&
                    m.attention.query_bias && m.attention.scale_scores && !m.attention.scale_by_layer &&
                    m.attention.distance_bias_window == 0;
  if (!fits)
    fail("model",
         "smollm3: expected SmolLM3's architecture, with RoPE, softmax and no distance bias, found positions {} and "
         "normalizer {}",
         name(m.positions.kind), name(m.attention.normalizer));
  const std::vector<double>& bases = m.positions.layer_bases;
  if (!bases.empty() && static_cast<int64_t>(bases.size()) != m.num_layers)
    fail("model", "no_rope_layers: expected num_hidden_layers ({}) numbers, found {}", m.num_layers, bases.size());
  for (const double base : bases) {
    if (base != 0 && base != m.positions.rope_base)
      fail("model", "smollm3: expected RoPE base {} or 0 in each layer, found {}", m.positions.rope_base, base);
  }
}

}  // namespace

const Family kSmolLm3 = {ModelFamily::smollm3, "SmolLM3ForCausalLM", {},           smollm3_defaults, read_smollm3,
                         write_smollm3,        check_smollm3,        plain_tensors};

}  // namespace lazy
