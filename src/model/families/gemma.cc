// Reads and writes config.json of Gemma 2 and Gemma 3. Their files use the names of the model's parameters for tensors.
#include <algorithm>
#include <cmath>

#include "model/config_json.h"
#include "model/families/families.h"

namespace lazy {
namespace {

using config_json::Fields;
using nlohmann::json;

constexpr double kLocalBase = 1e4;  // default RoPE base of layers with a window
constexpr int64_t kWindow = 4096;   // default of sliding_window in transformers

void gemma_defaults(ModelConfig& m) {
  m.norm.sandwich_norm = m.norm.unit_offset = true;
  m.mlp.kind = MlpKind::geglu_tanh;
  m.multipliers.embedding_by_width = true;
  m.tie_embeddings = true;
}

void gemma2_defaults(ModelConfig& m) {
  gemma_defaults(m);
  m.family = ModelFamily::gemma2;
  m.multipliers.logits_softcap = 30;
  m.attention.softcap = 50;
}

void gemma3_defaults(ModelConfig& m) {
  gemma_defaults(m);
  m.family = ModelFamily::gemma3;
  m.positions.rope_base = 1e6;
  m.positions.scale_windowed_layers = false;
  m.attention.qk_norm = true;
}

// Reads a soft cap. null means no cap. If the key is absent, `cap` is unchanged: Gemma 2 has a default cap, and Gemma 3
// has no cap.
void read_softcap(const Fields& fields, const char* name, double& cap) {
  if (!fields.has(name)) return;
  cap = 0;
  fields.number({name}, cap);
  if (fields.find({name}) && !(cap > 0)) fields.wrong(name, "more than 0, or null", cap);
}

void read_gemma(const Fields& fields, const char* type, ModelConfig& m) {
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  fields.required_integer({"num_attention_heads"}, m.attention.num_heads);
  m.attention.num_kv_heads = fields.has("num_key_value_heads") ? m.attention.num_heads : 4;
  fields.integer({"num_key_value_heads"}, m.attention.num_kv_heads);
  m.attention.head_dim = 256;
  fields.integer({"head_dim"}, m.attention.head_dim);
  fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  fields.number({"rms_norm_eps"}, m.norm.eps);
  fields.integer({"max_position_embeddings"}, m.max_length);
  double scalar = 256;
  fields.number({"query_pre_attn_scalar"}, scalar);
  if (!(scalar > 0)) fields.wrong("query_pre_attn_scalar", "more than 0", scalar);
  m.attention.multiplier = 1 / std::sqrt(scalar);
  read_softcap(fields, "final_logit_softcapping", m.multipliers.logits_softcap);
  m.bos_token_id = 2;  // default values of both ids; the caller then reads them from config.json
  m.eos_token_id = 1;
  fields.boolean({"attention_bias"}, m.attention.qkv_bias);
  m.attention.output_bias = m.attention.qkv_bias;
  if (fields.has("sliding_window") && !fields.find({"sliding_window"}))
    fields.wrong("sliding_window", "an integer", json());
  config_json::read_window(fields, type, m);
  std::string activation = "gelu_pytorch_tanh";
  fields.string({"hidden_activation"}, activation);
  if (!config_json::is_gelu_tanh(activation))
    fields.wrong("hidden_activation", "gelu_pytorch_tanh or a synonym", activation);
}

void write_gemma(const ModelConfig& m, nlohmann::ordered_json& out) {
  config_json::write_sizes(m, out);
  out.erase("hidden_act");
  out["hidden_activation"] = "gelu_pytorch_tanh";
  out["attention_bias"] = m.attention.qkv_bias;
  const double scalar = 1 / (m.score_scale(0) * m.score_scale(0)), rounded = std::round(scalar);
  if (std::abs(scalar - rounded) < 1e-9 * scalar) {  // transformers accepts only an integer query_pre_attn_scalar
    out["query_pre_attn_scalar"] = static_cast<int64_t>(rounded);
  } else {
    out["query_pre_attn_scalar"] = scalar;
  }
  const auto cap = [](double value) { return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); };
  out["final_logit_softcapping"] = cap(m.multipliers.logits_softcap);
  out["attn_logit_softcapping"] = cap(m.attention.softcap);
  config_json::write_rope(m, out);
  config_json::write_window(m, out);
  // transformers builds the sliding-window mask even if no layer uses it, so sliding_window must have a value.
  if (m.attention.window < 0) out["sliding_window"] = kWindow;
}

void check_gemma(const ModelConfig& m) {
  const bool fits = m.norm.kind == NormKind::rms && m.norm.sandwich_norm && m.norm.unit_offset && !m.norm.post_norm &&
                    !m.norm.branch_norm && m.norm.final_norm && m.mlp.kind == MlpKind::geglu_tanh && !m.mlp.bias &&
                    m.has_plain_rope() && !m.attention.qk_norm_joint &&
                    m.attention.qk_norm == (m.family == ModelFamily::gemma3) &&
                    m.attention.normalizer == Normalizer::softmax && m.attention.qkv_bias == m.attention.output_bias &&
                    m.attention.query_bias && m.attention.scale_scores && !m.attention.scale_by_layer &&
                    m.attention.distance_bias_window == 0;
  if (!fits)
    fail("model",
         "{}: expected Gemma's architecture, with RoPE, softmax and no distance bias, found positions {} and "
         "normalizer {}",
         name(m.family), name(m.positions.kind), name(m.attention.normalizer));
  if (const double cap = m.attention.softcap; cap != 0 && !(cap >= 1e-6 && cap <= 1e6))
    fail("model", "attn_logit_softcapping: expected 1e-6 to 1e6, or null, found {}", cap);
}

void read_gemma2(const Fields& fields, ModelConfig& m) {
  m.max_length = 8192;
  read_gemma(fields, "gemma2", m);
  read_softcap(fields, "attn_logit_softcapping", m.attention.softcap);
  config_json::read_rope(fields, m);
}

double local_base(const ModelConfig& m) {
  for (int64_t i = 0; i < m.num_layers; ++i) {
    if (m.window_of(i) > 0) return m.rope_base_of(i);
  }
  return kLocalBase;
}

// transformers 4 writes rope_theta, rope_scaling and rope_local_base_freq. transformers 5 writes rope_parameters with
// one entry per layer type. If both are present, rope_scaling is merged into the entry of full_attention. Layers with a
// window have a separate base and no scaling.
void read_gemma3_rope(const Fields& fields, ModelConfig& m) {
  const auto object = [&](const Fields& from, const char* field) {
    const json* value = from.find({field});
    if (value && !value->is_object()) from.wrong(field, "an object", *value);
    return value ? *value : json::object();
  };
  const json types = object(fields, "rope_parameters");
  for (const auto& [key, value] : types.items()) {
    if (key != "full_attention" && key != "sliding_attention")
      fields.wrong("rope_parameters", "only full_attention and sliding_attention", types);
  }
  const Fields by_type(types, fields.file());
  json full = object(by_type, "full_attention");
  full.update(object(fields, "rope_scaling"));
  json flat = {{"model_type", "gemma3_text"}, {"rope_parameters", full}};
  for (const char* field : {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
    if (const json* value = fields.find({field})) flat[field] = *value;
  }
  config_json::read_rope(Fields(flat, fields.file()), m);

  double local = kLocalBase;
  fields.number({"rope_local_base_freq"}, local);
  const json sliding = object(by_type, "sliding_attention");
  const Fields windowed(sliding, fields.file());
  std::string type = "default";
  windowed.string({"rope_type", "type"}, type);
  if (type != "default") windowed.wrong("rope_type", "default in rope_parameters.sliding_attention", type);
  windowed.number({"rope_theta"}, local);
  windowed.must_be("partial_rotary_factor", 1);
  if (!(local > 1)) fields.wrong("rope_local_base_freq", "more than 1", local);
  m.positions.layer_bases.clear();
  // The length of the list is limited here, because num_hidden_layers has not been validated yet.
  for (int64_t i = 0; i < std::min(m.num_layers, int64_t{1} << 14); ++i)
    m.positions.layer_bases.push_back(m.window_of(i) > 0 ? local : m.positions.rope_base);
}

void read_gemma3(const Fields& fields, ModelConfig& m) {
  m.max_length = 131072;
  read_gemma(fields, "gemma3_text", m);
  read_gemma3_rope(fields, m);
}

void write_gemma3(const ModelConfig& m, nlohmann::ordered_json& out) {
  write_gemma(m, out);
  const double local = local_base(m);
  out["rope_local_base_freq"] = local;
  const nlohmann::ordered_json full = out["rope_parameters"];
  out["rope_parameters"] = {{"full_attention", full},
                            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
}

void check_gemma2(const ModelConfig& m) {
  check_gemma(m);
  if (!m.positions.layer_bases.empty()) fail("model", "gemma2: expected one RoPE base for all layers, found several");
}

void check_gemma3(const ModelConfig& m) {
  check_gemma(m);
  const std::vector<double>& bases = m.positions.layer_bases;
  if (!bases.empty() && static_cast<int64_t>(bases.size()) != m.num_layers)
    fail("model", "gemma3_text: expected num_hidden_layers ({}) RoPE bases, found {}", m.num_layers, bases.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    const double expected = m.window_of(static_cast<int64_t>(i)) > 0 ? local_base(m) : m.positions.rope_base;
    if (bases[i] != expected)
      fail("model", "gemma3_text: expected RoPE base {} in layer {}, found {}", expected, i, bases[i]);
  }
}

}  // namespace

const Family kGemma2 = {ModelFamily::gemma2, "Gemma2ForCausalLM", {},           gemma2_defaults,
                        read_gemma2,         write_gemma,         check_gemma2, plain_tensors};
const Family kGemma3 = {ModelFamily::gemma3, "Gemma3ForCausalLM", {},           gemma3_defaults,
                        read_gemma3,         write_gemma3,        check_gemma3, plain_tensors};

}  // namespace lazy
