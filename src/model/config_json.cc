// Reading and writing config.json of a Hugging Face folder.
#include "model/config_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/ranges.h>

#include "core/file.h"
#include "core/python_json.h"
#include "model/config_fixed_keys.h"
#include "model/families/families.h"
#include "model/mixers/config.h"
#include "model/mixers/registry.h"

namespace lazy {

using config_json::Fields;
using config_json::json;
using config_json::kOperation;

namespace {

const std::vector<std::string> kTypes = {"llama", "mistral", "qwen2", "qwen3", "lazy_attention"};

// Defaults that the configuration classes of transformers use for absent fields and that differ from ModelConfig's.
struct FamilyDefaults {
  int64_t kv_heads = 0, head_dim = 0, max_length = 0;  // 0: derived from other fields
};
FamilyDefaults family_defaults(const std::string& type) {
  if (type == "llama") return {.max_length = 2048};
  if (type == "mistral") return {.kv_heads = 8, .max_length = 4096 * 32};
  if (type == "qwen2") return {.kv_heads = 32, .max_length = 32768};
  if (type == "qwen3") return {.kv_heads = 32, .head_dim = 128, .max_length = 32768};
  return {};
}

// The fields that the released models of gated attention (arXiv 2505.06708) add to Qwen3.
constexpr std::pair<const char*, GateKind> kGateFields[] = {{"headwise_attn_output_gate", GateKind::head},
                                                            {"elementwise_attn_output_gate", GateKind::element}};

void read_gate(const Fields& fields, ModelConfig& m) {
  for (const auto& [field, kind] : kGateFields) {
    bool used = false;
    fields.boolean({field}, used);
    if (!used) continue;
    if (m.attention.gate != GateKind::none)
      fail(kOperation, "{}: {}: only one gate of the attention output can be enabled, found two", fields.file(), field);
    m.attention.gate = kind;
  }
  if (m.attention.gate == GateKind::none) return;
  fields.boolean({"use_qk_norm"}, m.attention.qk_norm);
  for (const char* field : {"qkv_bias", "attention_bias"}) fields.must_be_absent(field, "biases in models with gates");
}

void write_gate(const ModelConfig& m, nlohmann::ordered_json& out) {
  for (const auto& [field, kind] : kGateFields) out[field] = m.attention.gate == kind;
  out["use_qk_norm"] = m.attention.qk_norm;
  out["qkv_bias"] = false;
}

void read_biases(const Fields& fields, const std::string& type, ModelConfig& m) {
  m.attention.qk_norm = type == "qwen3";
  if (type == "qwen3") read_gate(fields, m);
  if (type == "llama" || type == "qwen3") {
    fields.boolean({"attention_bias"}, m.attention.qkv_bias);
    m.attention.output_bias = m.attention.qkv_bias;
  } else if (type == "qwen2") {
    m.attention.qkv_bias = true;
  }
}

// Reads the numbers and sizes of the heads. The field names of FLA (flash-linear-attention) are read only in Lazy
// models, because transformers ignores them in the other families.
void read_heads(const Fields& fields, const std::string& type, ModelConfig& m) {
  const FamilyDefaults defaults = family_defaults(type);
  const bool fla = type == "lazy_attention";
  fields.required_integer({"num_attention_heads", fla ? "num_heads" : "num_attention_heads"}, m.attention.num_heads);
  m.attention.num_kv_heads =
      defaults.kv_heads > 0 && !fields.has("num_key_value_heads") ? defaults.kv_heads : m.attention.num_heads;
  fields.integer({"num_key_value_heads", fla ? "num_kv_heads" : "num_key_value_heads"}, m.attention.num_kv_heads);
  if (fields.find({"head_dim"})) {
    fields.integer({"head_dim"}, m.attention.head_dim);
  } else if (defaults.head_dim > 0) {
    m.attention.head_dim = defaults.head_dim;
  } else {
    config_json::divide_heads(fields, "num_attention_heads", m);
  }
}

ModelConfig validated(ModelConfig m, const std::string& file) {
  try {
    m.validate();
    m.mlp.intermediate_size = m.intermediate();
  } catch (const Error& e) {
    throw Error(fmt::format("config.json: {}: {}", file, std::string(e.what()).substr(std::string("model: ").size())));
  }
  return m;
}

// Reads the fields shared by the Llama families, Lazy models and other mixers.
void read_decoder(const Fields& fields, const std::string& type, const MixerKind* kind, ModelConfig& m) {
  const bool lazy = type == "lazy_attention";
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  if (kind) {
    use_mixer(m, *kind);
    read_hybrid(fields, m);
    kind->read(fields, m);
    infer_mixer_sizes(m);
  } else {
    read_heads(fields, type, m);
  }
  fields.number({"hidden_ratio"}, m.mlp.hidden_ratio);
  fields.integer({"intermediate_size"}, m.mlp.intermediate_size);
  if (!lazy && !kind && m.mlp.intermediate_size == 0)
    fields.required_integer({"intermediate_size"}, m.mlp.intermediate_size);
  const bool fla = lazy || kind;
  fields.number({"rms_norm_eps", fla ? "norm_eps" : "rms_norm_eps"}, m.norm.eps);
  fields.integer({"max_position_embeddings"}, m.max_length);
  config_json::read_rope(fields, m);
  if (!lazy && !kind && m.positions.rope_base == 0)
    fail(kOperation, "{}: rope_theta: expected more than 1, found 0", fields.file());
  if (!kind) config_json::read_window(fields, type, m);
  read_biases(fields, type, m);
  config_json::require_silu(fields);
}

// Writes the fields that read_decoder and read_biases read.
void write_decoder(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["hidden_size"] = m.hidden_size;
  if (m.mlp.enabled) out["intermediate_size"] = m.intermediate();
  out["num_hidden_layers"] = m.num_layers;
  if (m.all_attention()) {
    out["num_attention_heads"] = m.attention.num_heads;
    out["num_key_value_heads"] = m.attention.num_kv_heads;
    out["head_dim"] = m.attention.head_dim;
    out["hidden_act"] = "silu";
    out["rms_norm_eps"] = m.norm.eps;
    config_json::write_rope(m, out);
  } else {  // other mixers use FLA's field names
    mixer_kind(m).write(m, out);
    write_hybrid(m, out);
    out["hidden_act"] = "swish";
    out["norm_eps"] = m.norm.eps;
  }
  out["max_position_embeddings"] = m.max_length;
  const std::string transformers_class = m.architecture();
  const bool lazy = transformers_class == "LazyForCausalLM", llama = transformers_class == "LlamaForCausalLM";
  if (lazy || llama || transformers_class == "Qwen3ForCausalLM") out["attention_bias"] = m.attention.qkv_bias;
  if (lazy || llama) out["mlp_bias"] = false;
  if (m.gates_in_queries()) write_gate(m, out);
}

}  // namespace

void config_json::divide_heads(const Fields& fields, const char* name, ModelConfig& m) {
  if (m.attention.num_heads < 1 || m.hidden_size % m.attention.num_heads != 0) {
    fail(kOperation, "{}: {}: expected a divisor of hidden_size ({}), found {}", fields.file(), name, m.hidden_size,
         m.attention.num_heads);
  }
  m.attention.head_dim = m.hidden_size / m.attention.num_heads;
}

void config_json::read_grouped_heads(const Fields& fields, int64_t default_kv_heads, ModelConfig& m) {
  fields.required_integer({"num_attention_heads"}, m.attention.num_heads);
  m.attention.num_kv_heads =
      default_kv_heads > 0 && !fields.has("num_key_value_heads") ? default_kv_heads : m.attention.num_heads;
  fields.integer({"num_key_value_heads"}, m.attention.num_kv_heads);
  if (fields.find({"head_dim"})) {
    fields.integer({"head_dim"}, m.attention.head_dim);
  } else {
    divide_heads(fields, "num_attention_heads", m);
  }
}

void config_json::write_sizes(const ModelConfig& m, nlohmann::ordered_json& out) {
  out["hidden_size"] = m.hidden_size;
  out["intermediate_size"] = m.intermediate();
  out["num_hidden_layers"] = m.num_layers;
  out["num_attention_heads"] = m.attention.num_heads;
  out["num_key_value_heads"] = m.attention.num_kv_heads;
  out["head_dim"] = m.attention.head_dim;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm.eps;
  out["max_position_embeddings"] = m.max_length;
}

bool config_json::is_gelu_tanh(const std::string& activation) {
  const auto known = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"};
  return std::find(known.begin(), known.end(), activation) != known.end();
}

void config_json::require_silu(const Fields& fields) {
  std::string activation = "silu";
  fields.string({"hidden_act"}, activation);
  if (activation != "silu" && activation != "swish" &&
      activation != "swiglu") {  // flash-linear-attention writes swiglu
    fail(kOperation, "{}: hidden_act: expected silu or swish, found '{}'", fields.file(),
         to_valid_utf8(activation.substr(0, 80)));
  }
}

namespace {

constexpr std::string_view kConvertedPrefix = "lazy_";

// Returns the original family if model_type is "lazy_<family>" of a converted model, otherwise "".
std::string converted_family(const std::string& type) {
  if (!type.starts_with(kConvertedPrefix)) return "";
  const std::string family = type.substr(kConvertedPrefix.size());
  const auto known = convertible_families();
  return std::find(known.begin(), known.end(), family) == known.end() ? "" : family;
}

ModelConfig read_converted(const json& root, const std::string& family, const std::string& file) {
  json base = root;
  base["model_type"] = family;
  ModelConfig m = ModelConfig::from_json(base, file);
  m.converted = true;
  m.attention.normalizer = m.has_sink() ? Normalizer::elastic_sink : Normalizer::elastic;
  // The defaults of absent keys are the same as in lazy_config_class in python/lazy_attention/hf/families.py.
  m.attention.distance_bias_window = 0;
  m.attention.offset_init = m.attention.distance_bias_init_std = 0;
  read_elastic(Fields(root, file), m);
  return validated(std::move(m), file);
}

nlohmann::ordered_json write_converted(const ModelConfig& m) {
  nlohmann::ordered_json out = without_conversion(m).to_json();
  out["architectures"] = {m.architecture()};
  out["model_type"] = std::string(kConvertedPrefix) + name(m.family);
  write_elastic(m, out);
  return out;
}

}  // namespace

ModelConfig ModelConfig::from_json(const json& root, const std::string& file) {
  if (!root.is_object()) fail(kOperation, "{}: expected a JSON object", file);
  if (is_native_mamba2(root)) return validated(read_native_mamba2(root, file), file);
  const Fields fields(root, file);
  std::string type;
  fields.string({"model_type"}, type);
  if (const std::string family = converted_family(type); !family.empty()) return read_converted(root, family, file);
  const MixerKind* kind = find_mixer_type(type);
  const Family* laid_out = find_family(type);
  if (!kind && !laid_out && std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    std::vector<std::string> types = kTypes;
    for (const Family* other : families()) types.push_back(name(other->family));
    for (const MixerKind* other : mixer_kinds()) {
      // Two mixers may have the same model_type: TTT-Linear and TTT-MLP differ only in another key.
      if (std::ranges::find(types, other->model_type) == types.end()) types.push_back(other->model_type);
    }
    for (const std::string& converted : convertible_families())
      types.push_back(std::string(kConvertedPrefix) + converted);
    fail(kOperation, "{}: model_type: expected one of {}, found {}", file, fmt::join(types, ", "),
         type.empty() ? "nothing" : "'" + to_valid_utf8(type.substr(0, 80)) + "'");
  }
  config_json::check_custom_code(fields, type);
  config_json::check_fixed_keys(fields, type);
  if (!laid_out || !laid_out->quantized) fields.must_be_absent("quantization_config", "quantized weights");
  const bool lazy = type == "lazy_attention";
  ModelConfig m;
  if (!lazy && !kind) m.family = *kModelFamilies.find(type);
  if (const int64_t length = family_defaults(type).max_length; length > 0) m.max_length = length;
  if (laid_out) laid_out->defaults(m);
  fields.required_integer({"vocab_size", "n_token"}, m.vocab_size);
  if (laid_out) {
    laid_out->read(fields, m);
  } else {
    read_decoder(fields, type, kind, m);
  }
  fields.boolean({"tie_word_embeddings"}, m.tie_embeddings);
  fields.number({"initializer_range"}, m.init_std);
  fields.token("bos_token_id", m.bos_token_id);
  fields.token("eos_token_id", m.eos_token_id);
  if (lazy) {
    m.attention.normalizer = Normalizer::elastic;
    m.attention.distance_bias_window = 512;
    read_lazy(fields, m);
  }
  std::string fingerprint;
  fields.string({"tokenizer_fingerprint"}, fingerprint);
  if (!fingerprint.empty()) {
    const char* end = fingerprint.data() + fingerprint.size();
    const auto parsed = std::from_chars(fingerprint.data(), end, m.tokenizer_fingerprint, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      fields.wrong("tokenizer_fingerprint", "16 hexadecimal digits", json(fingerprint));
    }
  }
  return validated(std::move(m), file);
}

ModelConfig ModelConfig::from_directory(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  const std::string text = read_file(path);
  if (const auto adapter = directory / "adapter_config.json"; std::filesystem::exists(adapter))
    fail(kOperation, "{}: expected none (adapters are not supported: merge them into the weights)", adapter.string());
  try {
    auto root = parse_python_json<json>(text);
    restore_special_floats(root);
    // For invalid JSON, json::parse throws an exception with the reason.
    return from_json(root.is_discarded() ? json::parse(text) : root, path.string());
  } catch (const json::exception& e) {  // also thrown for out-of-range numbers; its message may quote much of the file
    fail(kOperation, "{}: expected JSON: {}", path.string(), to_valid_utf8(std::string(e.what()).substr(0, 200)));
  }
}

nlohmann::ordered_json ModelConfig::to_json() const {
  if (family == ModelFamily::state_spaces) return write_native_mamba2(*this);
  if (converted) return write_converted(*this);
  nlohmann::ordered_json out;
  const std::string transformers_class = architecture();
  const bool lazy = transformers_class == "LazyForCausalLM";
  out["architectures"] = {transformers_class};
  out["model_type"] = !all_attention() ? mixer_kind(*this).model_type : lazy ? "lazy_attention" : name(family);
  out["vocab_size"] = vocab_size;
  if (const Family* laid_out = family_of(*this)) {
    laid_out->write(*this, out);
  } else {
    write_decoder(*this, out);
  }
  out["tie_word_embeddings"] = tie_embeddings;
  out["initializer_range"] = init_std;
  out["bos_token_id"] = bos_token_id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(bos_token_id);
  out["eos_token_id"] = eos_token_id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(eos_token_id);
  if (lazy) write_lazy(*this, out);
  if (all_attention() && !family_of(*this)) config_json::write_window(*this, out);
  if (tokenizer_fingerprint != 0) out["tokenizer_fingerprint"] = fmt::format("{:016x}", tokenizer_fingerprint);
  return out;
}

}  // namespace lazy

namespace lazy::config_json {
namespace {

// Returns YaRN's attention factor for the fields mscale and mscale_all_dim, as DeepSeek's models define them.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  return scale(mscale) / scale(mscale_all_dim);
}

void read_attention_factor(const Fields& rope, ops::RopeScaling& s) {
  rope.number({"attention_factor"}, s.attention_factor);
  if (rope.find({"attention_factor"}) && s.attention_factor <= 0)  // in RopeScaling, 0 would mean the default
    rope.wrong("attention_factor", "more than 0", s.attention_factor);
}

void read_yarn(const Fields& rope, ops::RopeScaling& s) {
  double mscale = 0, mscale_all_dim = 0;
  rope.number({"mscale"}, mscale);
  rope.number({"mscale_all_dim"}, mscale_all_dim);
  if (mscale != 0 && mscale_all_dim != 0) s.attention_factor = yarn_attention_factor(s.factor, mscale, mscale_all_dim);
  read_attention_factor(rope, s);
  rope.number({"beta_fast"}, s.beta_fast);
  rope.number({"beta_slow"}, s.beta_slow);
  if (rope.has("truncate")) s.truncate = false;  // transformers treats null as false
  rope.boolean({"truncate"}, s.truncate);
}

// Reads one factor per rotated pair. Their number and range are validated later, together with the sizes.
std::vector<double> read_pair_factors(const Fields& rope, const char* name, const char* field) {
  const json* list = rope.find({field});
  if (!list) fail(kOperation, "{}: {}.{}: expected a list of numbers, found nothing", rope.file(), name, field);
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), [](const json& n) { return n.is_number(); }))
    rope.wrong(field, "a list of numbers", *list);
  return list->get<std::vector<double>>();
}

bool is_layer_type(const std::string& name) { return name == "full_attention" || name == "sliding_attention"; }

}  // namespace

// Reads RoPE's base and scaling. transformers 4 writes rope_theta and rope_scaling at the top level. transformers 5
// writes rope_parameters, but prefers rope_scaling if both are present.
void read_rope(const Fields& fields, ModelConfig& m) {
  fields.number({"rope_theta"}, m.positions.rope_base);
  std::string model_type;
  fields.string({"model_type"}, model_type);
  const bool phi3 = model_type == "phi3";
  if (phi3) fields.number({"partial_rotary_factor"}, m.positions.partial_rotary_factor);
  if (!phi3 && model_type != "lazy_attention")
    fields.must_be("partial_rotary_factor", 1);  // for Lazy models it is read with the other Lazy Attention fields
  const json* scaling = fields.find({"rope_scaling"});
  const bool old = scaling && !(scaling->is_object() && scaling->empty());
  const char* name = old ? "rope_scaling" : "rope_parameters";
  const json* rope = fields.find({name});
  const bool has_base = fields.has("rope_theta") || (rope && rope->is_object() && rope->contains("rope_theta"));
  if (!rope && !has_base && model_type == "lazy_attention") m.positions.rope_base = 1.5e5;  // LazyConfig's default
  if (fields.has("rope_theta") && !fields.find({"rope_theta"}) && (!rope || !rope->contains("rope_theta")))
    fields.wrong("rope_theta", "a number", json());
  if (!rope) return;
  if (!rope->is_object()) fields.wrong(name, "an object", *rope);
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (rope->contains(layers))
      fail(kOperation, "{}: {}.{}: expected one RoPE for all layers", fields.file(), name, layers);
  }
  const Fields inner(*rope, fields.file());
  ops::RopeScaling& s = m.positions.rope_scaling;
  std::string type = "default";
  if (phi3) {  // transformers converts the names su and yarn in rope_type and keeps the original name in type
    inner.string({"type"}, type);
    inner.string({"rope_type"}, type);
  } else {
    inner.string({"rope_type", "type"}, type);
  }
  if (inner.has("rope_theta") && !inner.find({"rope_theta"})) inner.wrong("rope_theta", "a number", json());
  inner.number({"rope_theta"}, m.positions.rope_base);
  if (phi3) {
    inner.number({"partial_rotary_factor"}, m.positions.partial_rotary_factor);
  } else {
    inner.must_be("partial_rotary_factor", 1);
  }
  if (type == "default") return;
  if (phi3 && (type == "su" || type == "yarn")) type = "longrope";  // Phi-3 also uses these names for longrope
  const std::vector<std::string> known =
      phi3 ? std::vector<std::string>{"longrope"}
           : std::vector<std::string>{"linear", "dynamic", "llama3", "yarn", "longrope"};
  if (std::find(known.begin(), known.end(), type) == known.end()) {
    fail(kOperation, "{}: {}.rope_type: expected default or {}, found '{}'", fields.file(), name,
         fmt::join(known, ", "), to_valid_utf8(type.substr(0, 80)));
  }
  s.type = type;
  const bool longrope = type == "longrope", may_infer_factor = longrope || type == "yarn";
  if (!may_infer_factor && !inner.find({"factor"})) {
    fail(kOperation, "{}: {}.factor: expected a number, found nothing", fields.file(), name);
  }
  if (type != "linear") s.original_length = phi3 ? 4096 : m.max_length;
  if (type == "llama3" || may_infer_factor) {
    // For Phi-3, only the field at the top level is read, because transformers overwrites the value inside
    // rope_parameters with it.
    if (!phi3) inner.integer({"original_max_position_embeddings"}, s.original_length);
    fields.integer({"original_max_position_embeddings"}, s.original_length);
    if (s.original_length < 1)
      fail(kOperation, "{}: {}.original_max_position_embeddings: expected at least 1, found {}", fields.file(), name,
           s.original_length);
  }
  if (may_infer_factor) s.factor = static_cast<double>(m.max_length) / static_cast<double>(s.original_length);
  inner.number({"factor"}, s.factor);
  if (type == "llama3") {
    inner.number({"low_freq_factor"}, s.low_frequency);
    inner.number({"high_freq_factor"}, s.high_frequency);
  }
  if (type == "yarn") read_yarn(inner, s);
  if (longrope) {
    read_attention_factor(inner, s);
    s.pair_factors = read_pair_factors(inner, name, "short_factor");
    m.positions.long_pair_factors = read_pair_factors(inner, name, "long_factor");
  }
}

void write_rope(const ModelConfig& m, nlohmann::ordered_json& out) {
  const ops::RopeScaling& s = m.positions.rope_scaling;
  const bool phi3 = m.family == ModelFamily::phi3, longrope = s.type == "longrope";
  out["rope_theta"] = m.positions.rope_base;
  if (s.type == "none") {
    out["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", m.positions.rope_base}};
    if (phi3) out["rope_parameters"]["partial_rotary_factor"] = m.positions.partial_rotary_factor;
    return;
  }
  nlohmann::ordered_json rope = {{"rope_type", s.type}, {"factor", s.factor}};
  if (s.type == "llama3" || s.type == "yarn" || longrope) rope["original_max_position_embeddings"] = s.original_length;
  if (s.type == "llama3") {
    rope["low_freq_factor"] = s.low_frequency;
    rope["high_freq_factor"] = s.high_frequency;
  }
  if (s.type == "yarn") {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    if (!s.truncate) rope["truncate"] = false;
  }
  if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  if (longrope) {
    rope["short_factor"] = s.pair_factors;
    rope["long_factor"] = m.positions.long_pair_factors;
    if (phi3) out["original_max_position_embeddings"] = s.original_length;
  }
  if (phi3) rope["partial_rotary_factor"] = m.positions.partial_rotary_factor;
  out["rope_scaling"] = rope;
  rope["rope_theta"] = m.positions.rope_base;
  out["rope_parameters"] = rope;
}

namespace {

// Families whose layers use the sliding window according to a fixed pattern if layer_types is absent: layer
// `first_full` and every `period`-th layer after it do not use the window, and all other layers use it.
struct LayerPattern {
  std::string_view type;
  int64_t window, first_full, period;  // window: default of sliding_window
};
constexpr LayerPattern kLayerPatterns[] = {
    {"gpt_oss", 128, 1, 2}, {"granite_swa", 128, 0, 4}, {"gemma2", 4096, 1, 2}, {"gemma3_text", 4096, 5, 6}};

std::optional<LayerPattern> layer_pattern(const Fields& fields, const std::string& type) {
  for (LayerPattern pattern : kLayerPatterns) {
    if (pattern.type != type) continue;
    if (type == "gemma3_text" && fields.find({"sliding_window_pattern"})) {
      fields.integer({"sliding_window_pattern"}, pattern.period);
      if (pattern.period < 1) fields.wrong("sliding_window_pattern", "at least 1", pattern.period);
      pattern.first_full = pattern.period - 1;
    }
    return pattern;
  }
  return std::nullopt;
}

}  // namespace

// Which layers use the sliding window depends on the family. In Mistral and Phi-3, all layers use it. In the families
// of kLayerPatterns, layer_types or else the pattern selects the layers. In Qwen and SmolLM3, the window is optional,
// and layer_types selects the layers; without layer_types the window applies to the layers from max_window_layers on
// (Qwen) or to the layers without RoPE (SmolLM3).
void read_window(const Fields& fields, const std::string& type, ModelConfig& m) {
  if (type == "llama") return;
  if (type == "lazy_attention") return fields.integer({"sliding_window", "window_size"}, m.attention.window);
  const bool smollm3 = type == "smollm3", every_layer = type == "mistral" || type == "phi3";
  const std::optional<LayerPattern> pattern = layer_pattern(fields, type);
  const bool always = every_layer || pattern;
  bool used = always;
  if (!always) fields.boolean({"use_sliding_window"}, used);
  const bool has_default = !smollm3 && type != "phi3";
  if (used && has_default && !fields.has("sliding_window")) m.attention.window = pattern ? pattern->window : 4096;
  if (used && fields.find({"sliding_window"})) {
    fields.integer({"sliding_window"}, m.attention.window);
    if (m.attention.window < 1) fields.wrong("sliding_window", "at least 1, or null", m.attention.window);
  }
  if (every_layer) {
    // MistralConfig and Phi3Config have no field layer_types, but transformers applies layer_types to masks and caches
    // if it is present.
    const std::string layer = m.attention.window > 0 ? "sliding_attention" : "full_attention";
    const json expected(static_cast<size_t>(std::clamp(m.num_layers, int64_t{0}, int64_t{1} << 14)), layer);
    if (const json* types = fields.find({"layer_types"}); types && *types != expected)
      fields.wrong("layer_types", fmt::format("{} for every layer", layer).c_str(), *types);
    return;
  }
  std::vector<int64_t> full;
  if (const json* types = fields.find({"layer_types"})) {
    if (!types->is_array() || static_cast<int64_t>(types->size()) != m.num_layers) {
      fields.wrong("layer_types", "a list of num_hidden_layers names", *types);
    }
    for (size_t i = 0; i < types->size(); ++i) {
      const json& layer = (*types)[i];
      if (!layer.is_string() || !is_layer_type(layer.get<std::string>())) {
        fields.wrong("layer_types", "full_attention or sliding_attention", layer);
      }
      if (layer.get<std::string>() == "full_attention") {
        full.push_back(static_cast<int64_t>(i));
      } else if (m.attention.window < 0) {
        fail(kOperation, "{}: layer_types: sliding_attention requires an enabled sliding_window, found none",
             fields.file());
      }
    }
  } else if (m.attention.window > 0 && pattern) {
    for (int64_t i = pattern->first_full; i < std::min(m.num_layers, int64_t{1} << 14); i += pattern->period)
      full.push_back(i);
  } else if (m.attention.window > 0 && smollm3) {
    for (size_t i = 0; i < m.positions.layer_bases.size(); ++i) {
      if (m.positions.layer_bases[i] != 0) full.push_back(static_cast<int64_t>(i));
    }
  } else if (m.attention.window > 0) {
    int64_t first = 28;
    fields.integer({"max_window_layers"}, first);
    // num_hidden_layers has not been validated at this point, so the length of the list is limited here.
    for (int64_t i = 0; i < std::min({first, m.num_layers, int64_t{1} << 14}); ++i) full.push_back(i);
  }
  if (static_cast<int64_t>(full.size()) == m.num_layers) {
    m.attention.window = -1;
  } else {
    m.attention.full_layers = full;
  }
}

void write_window(const ModelConfig& m, nlohmann::ordered_json& out) {
  const std::string transformers_class = m.architecture();
  if (transformers_class == "LlamaForCausalLM") return;
  if (transformers_class == "LazyForCausalLM") {
    out["sliding_window"] = m.attention.window;
    return;
  }
  out["sliding_window"] =
      m.attention.window > 0 ? nlohmann::ordered_json(m.attention.window) : nlohmann::ordered_json();
  if (transformers_class == "MistralForCausalLM" || transformers_class == "Phi3ForCausalLM") return;
  if (std::none_of(std::begin(kLayerPatterns), std::end(kLayerPatterns),
                   [&](const LayerPattern& pattern) { return pattern.type == name(m.family); })) {
    out["use_sliding_window"] = m.attention.window > 0;
    if (m.attention.window < 0) return;
    int64_t first = 0;  // first layer with a window; only transformers before 4.53 reads it
    while (first < m.num_layers && m.window_of(first) < 0) ++first;
    if (transformers_class != "SmolLM3ForCausalLM") out["max_window_layers"] = first;
  }
  out["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < m.num_layers; ++i) {
    out["layer_types"].push_back(m.window_of(i) < 0 ? "full_attention" : "sliding_attention");
  }
}

}  // namespace lazy::config_json
