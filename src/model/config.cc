// Implementation of ModelConfig: reading section [model] of a TOML file, validation and parameter counts.
// config_json.cc reads and writes config.json.
#include "model/config.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>
#include "core/config.h"

#include "core/error.h"
#include "model/families/families.h"
#include "model/mixers/config.h"
#include "model/mixers/registry.h"
#include "model/parameters.h"

namespace lazy {

namespace {

void check(bool ok, const char* field, const std::string& expected, double found) {
  if (!ok) fail("model", "{}: expected {}, found {}", field, expected, found);
}

void check_longrope(const ModelConfig& c) {
  const ops::RopeScaling& s = c.positions.rope_scaling;
  if (!c.all_attention())
    fail("model", "rope_type: longrope: expected attention in every layer, found {}", name(c.mixer.type));
  if (s.attention_factor == 0 && s.factor > 1 && s.original_length == 1)
    fail("model",
         "rope_scaling.original_max_position_embeddings: expected at least 2 without attention_factor, found 1");
  for (const auto& [field, factors] : {std::pair{"rope_scaling.short_factor", &s.pair_factors},
                                       {"rope_scaling.long_factor", &c.positions.long_pair_factors}}) {
    const auto pairs = static_cast<size_t>(c.rotary_dim() / 2);
    if (factors->size() != pairs)
      fail("model", "{}: expected {} numbers (one per rotated pair), found {}", field, pairs, factors->size());
    for (const double factor : *factors)
      check(std::isfinite(factor) && factor > 0, field, "finite numbers above 0", factor);
  }
}

void check_rope_scaling(const ModelConfig& c) {
  const ops::RopeScaling& s = c.positions.rope_scaling;
  if (s.type == "none") return;
  const std::vector<std::string> known = {"linear", "dynamic", "llama3", "yarn", "longrope"};
  if (std::find(known.begin(), known.end(), s.type) == known.end()) {
    fail("model", "rope_type: expected default, {}, found '{}'", fmt::join(known, ", "), s.type);
  }
  const bool longrope = s.type == "longrope";
  // The factor of longrope may be below 1: it may be the ratio of the two context lengths, and transformers accepts
  // this ratio in either order.
  check(std::isfinite(s.factor) && (longrope ? s.factor > 0 : s.factor >= 1), "rope_scaling.factor",
        longrope ? "more than 0" : "at least 1", s.factor);
  if (s.type != "linear") {
    check_range(s.original_length, "rope_scaling.original_max_position_embeddings", 1, int64_t{1} << 30);
  }
  if (s.type == "dynamic" && c.rotary_dim() < 4)
    fail("model", "head_dim: dynamic RoPE requires at least 4 rotated dimensions, found {}", c.rotary_dim());
  if (s.type == "llama3") {
    check(std::isfinite(s.low_frequency) && s.low_frequency > 0, "rope_scaling.low_freq_factor", "more than 0",
          s.low_frequency);
    check(std::isfinite(s.high_frequency) && s.high_frequency > s.low_frequency, "rope_scaling.high_freq_factor",
          fmt::format("more than low_freq_factor ({})", s.low_frequency), s.high_frequency);
  }
  if (s.type == "yarn") {
    check(std::isfinite(s.beta_slow) && s.beta_slow > 0, "rope_scaling.beta_slow", "more than 0", s.beta_slow);
    check(std::isfinite(s.beta_fast) && s.beta_fast >= s.beta_slow, "rope_scaling.beta_fast",
          fmt::format("at least beta_slow ({})", s.beta_slow), s.beta_fast);
  }
  check(std::isfinite(s.attention_factor) && s.attention_factor >= 0, "rope_scaling.attention_factor", "more than 0",
        s.attention_factor);
  if (longrope) check_longrope(c);
}

void check_relative(const ModelConfig& c) {
  const bool relative = c.positions.kind == PositionKind::transformer_xl;
  for (const auto& [field, value] : {std::pair{"segment_length", c.positions.segment_length},
                                     {"memory_length", c.positions.memory_length},
                                     {"clamp_length", c.positions.clamp_length}}) {
    check_range(value, field, 0, c.max_length);
    if (value > 0 && !relative)
      fail("model", "{}: expected 0, positions {} do not use it, found {}", field, name(c.positions.kind), value);
  }
  if (!relative) return;
  if (c.positions.memory_length > 0 && c.positions.segment_length == 0) {
    fail("model", "memory_length: expected 0 without segment_length (the text is one segment), found {}",
         c.positions.memory_length);
  }
  if (c.hidden_size % 2 != 0)
    fail("model", "hidden_size: expected an even number (sines and cosines of distances), found {}", c.hidden_size);
  if (c.attention.normalizer == Normalizer::sparsemax || c.attention.normalizer == Normalizer::entmax15) {
    fail("model",
         "normalizer: expected softmax, elastic, sigmoid, softmax_sink or elastic_sink with positions transformer_xl, "
         "found {}",
         name(c.attention.normalizer));
  }
}

constexpr ModelFamily kConvertible[] = {ModelFamily::llama,   ModelFamily::mistral,    ModelFamily::qwen2,
                                        ModelFamily::qwen3,   ModelFamily::smollm3,    ModelFamily::olmo2,
                                        ModelFamily::phi3,    ModelFamily::gemma2,     ModelFamily::gemma3,
                                        ModelFamily::gpt_oss, ModelFamily::granite_swa};

// Returns the elastic normalizer that replaces `softmax`, the normalizer of the original model, in a conversion to Lazy
// Attention. If the original model has learned sinks, the converted model has them, too.
Normalizer with_offset(Normalizer softmax) {
  return softmax == Normalizer::softmax_sink ? Normalizer::elastic_sink : Normalizer::elastic;
}
Normalizer without_offset(Normalizer elastic) {
  return elastic == Normalizer::elastic_sink ? Normalizer::softmax_sink : Normalizer::softmax;
}

// Returns the normalizer of a model of this family after its conversion to Lazy Attention.
Normalizer converted_normalizer(ModelFamily family) {
  ModelConfig defaults;
  if (const Family* found = find_family(name(family))) found->defaults(defaults);
  return with_offset(defaults.attention.normalizer);
}

bool is_convertible(ModelFamily family) {
  return std::find(std::begin(kConvertible), std::end(kConvertible), family) != std::end(kConvertible);
}

void check_conversion(const ModelConfig& c) {
  if (!is_convertible(c.family))
    fail("model", "model_type: expected lazy_ followed by one of {}, found lazy_{}",
         fmt::join(convertible_families(), ", "), name(c.family));
  const Normalizer expected = converted_normalizer(c.family);
  if (!c.all_attention() || c.attention.normalizer != expected || c.attention.gate != GateKind::none ||
      c.positions.kind != PositionKind::rope) {
    fail("model", "lazy_{}: expected the normalizer {}, RoPE and no gate, found {}, {} and {}", name(c.family),
         name(expected), name(c.attention.normalizer), name(c.positions.kind), name(c.attention.gate));
  }
}

}  // namespace

std::vector<std::string> convertible_families() {
  std::vector<std::string> out;
  for (const ModelFamily family : kConvertible) out.emplace_back(name(family));
  return out;
}

ModelConfig to_lazy(const ModelConfig& config, int64_t distance_bias_window) {
  ModelConfig out = config;
  AttentionConfig& a = out.attention;
  // own_layout: the checkpoint layout is not the layout of a transformers family but one of `lazy train`, which can
  // store tau and the distance bias for every mixer.
  const bool own_layout = !config.all_attention() || config.architecture() == "LazyForCausalLM";
  if (!own_layout && !is_convertible(config.family))
    fail("model", "conversion to Lazy Attention: expected one of {}, found {}", fmt::join(convertible_families(), ", "),
         name(config.family));
  if (!config.attends())
    fail("model", "conversion to Lazy Attention: expected layers with softmax attention, found none ({})",
         config.kind());
  if (config.has_offset())
    fail("model", "conversion to Lazy Attention: expected softmax, found {} (already a Lazy model)",
         name(a.normalizer));
  const bool softmax = a.normalizer == Normalizer::softmax || a.normalizer == Normalizer::softmax_sink;
  if (!softmax || (a.gate != GateKind::none && !own_layout)) {
    fail("model", "conversion to Lazy Attention: expected softmax{}, found {}{}", own_layout ? "" : " without gates",
         name(a.normalizer), a.gate == GateKind::none ? "" : fmt::format(" with the gate '{}'", name(a.gate)));
  }
  a.normalizer = with_offset(a.normalizer);
  a.offset = OffsetKind::per_visible;
  a.offset_init = 0;
  a.offset_trainable = true;
  if (a.distance_bias_window == 0) {
    a.distance_bias_window = distance_bias_window;
    a.distance_bias_init_std = 0;  // the new distance bias is zero
  }
  out.converted = !own_layout;
  out.validate();
  return out;
}

ModelConfig without_conversion(const ModelConfig& config) {
  ModelConfig out = config;
  if (!config.converted) return out;
  const AttentionConfig plain;
  out.converted = false;
  out.attention.normalizer = without_offset(config.attention.normalizer);
  out.attention.offset = plain.offset;
  out.attention.offset_init = plain.offset_init;
  out.attention.offset_trainable = plain.offset_trainable;
  out.attention.distance_bias_window = 0;
  out.attention.distance_bias_init_std = plain.distance_bias_init_std;
  return out;
}

bool ModelConfig::has_offset() const { return kernels::traits(attention.normalizer).takes_tau; }
bool ModelConfig::has_sink() const { return kernels::traits(attention.normalizer).takes_sink; }
int64_t ModelConfig::rotary_dim() const {
  return static_cast<int64_t>(static_cast<double>(attention.head_dim) * positions.partial_rotary_factor);
}
bool ModelConfig::has_plain_rope() const {
  return rotates() && positions.partial_rotary_factor == 1 && !positions.rope_interleaved;
}
bool ModelConfig::is_plain_attention() const {
  return attention.normalizer == Normalizer::softmax && attention.distance_bias_window == 0 && has_plain_rope() &&
         attention.gate == GateKind::none;
}
bool ModelConfig::is_plain_llama() const { return all_attention() && is_plain_attention() && attention.window < 0; }
int64_t ModelConfig::gate_size() const {
  if (attention.gate == GateKind::none) return 0;
  return attention.num_heads * (attention.gate == GateKind::element ? attention.head_dim : 1);
}

Rope rope_at(const ModelConfig& c, int64_t length) {
  if (!c.rotates()) return {};
  Rope rope{c.positions.rope_base, c.positions.rope_scaling, c.rotary_dim(), c.positions.rope_interleaved};
  if (rope.scaling.type == "longrope" && length > rope.scaling.original_length)
    rope.scaling.pair_factors = c.positions.long_pair_factors;
  if (rope.scaling.type != "dynamic") return rope;
  const double dims = static_cast<double>(c.rotary_dim()), factor = c.positions.rope_scaling.factor;
  const double longer = static_cast<double>(std::max(length, c.positions.rope_scaling.original_length)) /
                        static_cast<double>(c.positions.rope_scaling.original_length);
  rope.base *= std::pow(factor * longer - (factor - 1), dims / (dims - 2));
  rope.scaling = {};
  return rope;
}

bool rope_varies(const ModelConfig& c, int64_t max_length) {
  const ops::RopeScaling& s = c.positions.rope_scaling;
  return (s.type == "dynamic" || s.type == "longrope") && max_length > s.original_length;
}

std::string ModelConfig::architecture() const {
  if (converted) return "Lazy" + without_conversion(*this).architecture();
  if (!all_attention()) return mixer_kind(*this).architecture;
  if (const Family* laid_out = family_of(*this)) return laid_out->architecture;
  const bool biased = attention.qkv_bias && attention.output_bias, bare = !attention.qkv_bias && !attention.output_bias;
  const bool other = attention.normalizer != Normalizer::softmax || attention.distance_bias_window > 0;
  if (gates_in_queries() && bare && !other && has_plain_rope()) return "Qwen3ForCausalLM";
  if (!is_plain_attention()) return "LazyForCausalLM";
  if (family == ModelFamily::llama && (biased || bare) && !attention.qk_norm && attention.window < 0)
    return "LlamaForCausalLM";
  if (family == ModelFamily::mistral && bare && !attention.qk_norm && attention.full_layers.empty())
    return "MistralForCausalLM";
  if (family == ModelFamily::qwen2 && attention.qkv_bias && !attention.output_bias && !attention.qk_norm)
    return "Qwen2ForCausalLM";
  if (family == ModelFamily::qwen3 && (biased || bare) && attention.qk_norm) return "Qwen3ForCausalLM";
  return "LazyForCausalLM";
}

MixerType ModelConfig::mixer_of(int64_t layer) const {
  return std::binary_search(mixer.attention_layers.begin(), mixer.attention_layers.end(), layer) ? MixerType::attention
                                                                                                 : mixer.type;
}

int64_t ModelConfig::num_attention_layers() const {
  return all_attention() ? num_layers : static_cast<int64_t>(mixer.attention_layers.size());
}

bool ModelConfig::attends() const { return num_attention_layers() > 0 || mixer_kind(*this).window; }

int64_t ModelConfig::num_kv_cache_layers() const {
  if (positions.kind == PositionKind::transformer_xl && (positions.segment_length > 0 || attention.window > 0))
    return 0;
  if (all_attention()) return num_layers;
  // Titans layers cache the keys of all tokens only if they have no window. The MAC variant (memory as context) never
  // does: it caches only the keys of the current segment.
  const bool all = mixer_kind(*this).window && mixer.type != MixerType::titans_mac && attention.window < 0;
  return all ? num_layers : num_attention_layers();
}

int64_t ModelConfig::window_of(int64_t layer) const {
  return std::binary_search(attention.full_layers.begin(), attention.full_layers.end(), layer) ? -1 : attention.window;
}

bool ModelConfig::is_lazy() const { return has_offset() && attention.distance_bias_window > 0; }
std::string ModelConfig::kind() const {
  if (!all_attention()) return name(mixer.type);
  if (family_of(*this) && !converted) return name(family);
  if (attention.gate != GateKind::none && attention.normalizer == Normalizer::softmax) return "gated";
  return is_lazy() ? "lazy" : is_plain_llama() ? "transformer" : name(attention.normalizer);
}

double ModelConfig::score_scale(int64_t layer) const {
  if (attention.multiplier != 0) return attention.multiplier;
  const double scale = attention.scale_scores ? 1 / std::sqrt(static_cast<double>(attention.head_dim)) : 1;
  return attention.scale_by_layer ? scale / static_cast<double>(layer + 1) : scale;
}

double ModelConfig::rope_base_of(int64_t layer) const {
  return positions.layer_bases.empty() ? positions.rope_base : positions.layer_bases[static_cast<size_t>(layer)];
}

double ModelConfig::init_std_of(const std::string& name) const {
  const CheckpointNames names(*this);
  const bool branch = name == names.o || name == names.down;
  return scaled_residual_init && branch ? init_std / std::sqrt(2 * static_cast<double>(num_layers)) : init_std;
}

int64_t ModelConfig::intermediate() const {
  if (mlp.intermediate_size > 0) return mlp.intermediate_size;
  if (!mlp.gated()) return static_cast<int64_t>(static_cast<double>(hidden_size) * mlp.hidden_ratio);
  const auto raw = static_cast<int64_t>(static_cast<double>(hidden_size) * mlp.hidden_ratio * 2 / 3);
  return (raw + 255) / 256 * 256;
}

void ModelConfig::validate() const {
  // The upper limits are far above any real model. They prevent integer overflow in products of sizes from damaged
  // files.
  check_range(vocab_size, "vocab_size", 1, int64_t{1} << 24);
  check_range(hidden_size, "hidden_size", 1, int64_t{1} << 20);
  check_range(num_layers, "num_hidden_layers", 1, 1 << 14);
  check_range(attention.num_heads, "num_heads", 1, 1 << 14);
  check_range(attention.num_kv_heads, "num_kv_heads", 1, attention.num_heads);
  check_range(attention.head_dim, "head_dim", 2, 1 << 14);
  check_range(mlp.intermediate_size, "intermediate_size", 0, int64_t{1} << 24);
  check_range(max_length, "max_position_embeddings", 1, int64_t{1} << 30);
  check_range(attention.distance_bias_window, "distance_bias_window", 0, int64_t{1} << 24);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    fail("model", "num_kv_heads: expected a divisor of num_heads ({}), found {}", attention.num_heads,
         attention.num_kv_heads);
  }
  if (rotates() && attention.head_dim % 2 != 0)
    fail("model", "head_dim: expected an even number (RoPE rotates pairs), found {}", attention.head_dim);
  check(positions.partial_rotary_factor > 0 && positions.partial_rotary_factor <= 1, "partial_rotary_factor",
        "more than 0 and at most 1", positions.partial_rotary_factor);
  if (rotates() && (rotary_dim() < 2 || rotary_dim() % 2 != 0)) {
    fail("model", "partial_rotary_factor: expected an even number of head_dim's {} dimensions, found {}",
         attention.head_dim, rotary_dim());
  }
  if (attention.window != -1 && attention.window < 1)
    fail("model", "window_size: expected -1 (none) or at least 1, found {}", attention.window);
  check(std::isfinite(mlp.hidden_ratio) && mlp.hidden_ratio > 0 && mlp.hidden_ratio <= 1024, "hidden_ratio",
        "0 to 1024", mlp.hidden_ratio);
  if (mlp.intermediate_size == 0)
    check_range(intermediate(), "hidden_ratio: the resulting MLP width", 1, int64_t{1} << 24);
  check(norm.eps > 0 && norm.eps < 1, "norm_eps", "a number between 0 and 1", norm.eps);
  check(positions.rope_base == 0 || (std::isfinite(positions.rope_base) && positions.rope_base > 1), "rope_theta",
        "more than 1, or 0 for none", positions.rope_base);
  check(std::isfinite(attention.offset_init), "offset_init", "a finite number", attention.offset_init);
  check(std::isfinite(attention.sink_init), "sink_init", "a finite number", attention.sink_init);
  check(std::isfinite(init_std) && init_std >= 0, "initializer_range", "at least 0", init_std);
  check(std::isfinite(attention.distance_bias_init_std) && attention.distance_bias_init_std >= 0,
        "distance_bias_init_std", "at least 0", attention.distance_bias_init_std);
  check_relative(*this);
  if (adaptive.used) adaptive.validate(vocab_size);
  check_rope_scaling(*this);
  if (positions.rope_scaling.type != "none" && !rotates())
    fail("model", "rope_scaling: expected none without RoPE, found {}", positions.rope_scaling.type);
  for (const int64_t layer : attention.full_layers) check_range(layer, "layer_types: layer index", 0, num_layers - 1);
  if (converted) check_conversion(*this);
  if (const Family* laid_out = family_of(*this)) {
    laid_out->check(converted ? without_conversion(*this) : *this);
    if (attention.gate != GateKind::none || !attention.sink_trainable) {
      fail("model", "{}: expected {} in the layout of {}",
           attention.gate != GateKind::none ? "attention_gate" : "sink_trainable",
           attention.gate != GateKind::none ? "none" : "true", name(family));
    }
  } else if (norm.kind != NormKind::rms || mlp.kind != MlpKind::swiglu || mlp.bias || !attention.query_bias ||
             !attention.scale_scores || attention.scale_by_layer || norm.post_norm || norm.branch_norm ||
             norm.sandwich_norm || norm.unit_offset || !norm.final_norm || attention.qk_norm_joint || adaptive.used ||
             positions.shared_relative_biases) {
    fail("model", "family: expected a family whose layout supports these norm, MLP and attention settings, found {}",
         name(family));
  }
  if ((attention.qkv_bias || attention.output_bias || attention.qk_norm || !attention.full_layers.empty()) &&
      architecture() == "LazyForCausalLM") {
    fail("model", "attention_bias, qk_norm, layer_types: not supported by {} models of family {}", kind(),
         name(family));
  }
  if (!all_attention()) check_mixer(*this);
}

std::filesystem::path pretrained_folder(Config& config) {
  ConfigSection s = config.section("model");
  if (!s.has("from")) return {};
  for (const char* name : {"model", "mixer"}) {
    const ConfigSection section = config.section(name);
    for (const std::string& key : section.keys()) {
      if (key == "from" || key.starts_with("offset_schedule.")) continue;
      fail("config", "{}: {}.{}: expected no key in addition to model.from, whose config.json has the model's settings",
           section.where(key), name, key);
    }
  }
  const std::filesystem::path path = s.resolved("from", s.string("from", ""));
  for (const std::filesystem::path& folder : {path, path / "model"}) {
    if (std::filesystem::exists(folder / "config.json")) return folder;
  }
  fail("config",
       "{}: model.from: expected a model folder (config.json, weights, tokenizer) or the folder of a finished "
       "run, found {}",
       s.where("from"),
       std::filesystem::is_directory(path) ? path.string() + " without config.json"
                                           : path.string() + ", which is not a folder");
}

ModelConfig ModelConfig::from_toml(Config& config) {
  if (const auto folder = pretrained_folder(config); !folder.empty()) return from_directory(folder);
  ConfigSection s = config.section("model");
  ModelConfig m;
  const std::string kind = s.choice("kind", "lazy", model_kinds());
  if (kind == "lazy") {
    m.attention.normalizer = Normalizer::elastic;
    m.attention.distance_bias_window = 512;
    m.positions.rope_base = 1.5e5;
  } else if (const Family* family = find_family(kind)) {
    family->defaults(m);
    m.attention.query_bias = s.boolean("query_bias", m.attention.query_bias);
  } else if (const MixerKind* mixer = find_mixer(kind)) {
    use_mixer(m, *mixer);
  }
  m.vocab_size = s.integer("vocab_size", m.vocab_size, 0);
  m.hidden_size = s.integer("hidden_size", m.hidden_size, 1);
  m.num_layers = s.integer("num_hidden_layers", m.num_layers, 1);
  if (!m.all_attention()) {
    read_mixer(config, m);
    refuse_attention_keys(config, m);
    m.attention.num_heads = m.hidden_size % 64 == 0 ? m.hidden_size / 64 : 1;
    infer_mixer_sizes(m);
  } else {
    refuse_mixer_keys(config, kind);
  }
  m.attention.num_heads = s.integer("num_heads", m.attention.num_heads, 1);
  m.attention.num_kv_heads = s.integer("num_kv_heads", m.attention.num_heads, 1);
  const bool divides = m.hidden_size % m.attention.num_heads == 0;
  if (!divides && !s.has("head_dim")) {
    fail("model", "{}: model.num_heads: expected a divisor of hidden_size ({}) or an explicit head_dim, found {}",
         s.where("num_heads"), m.hidden_size, m.attention.num_heads);
  }
  m.attention.head_dim = s.integer("head_dim", m.hidden_size / m.attention.num_heads, 1);
  m.mlp.hidden_ratio = s.number("hidden_ratio", m.mlp.hidden_ratio);
  m.mlp.intermediate_size = s.integer("intermediate_size", 0, 0);
  if (!m.mlp.enabled && (m.mlp.intermediate_size > 0 || s.has("hidden_ratio"))) {
    const char* key = m.mlp.intermediate_size > 0 ? "intermediate_size" : "hidden_ratio";
    fail("model", "{}: {}: expected no key (or intermediate_size 0): {} has no MLP", s.where(key), key,
         name(m.mixer.type));
  }
  m.tie_embeddings = s.boolean("tie_word_embeddings", m.tie_embeddings);
  m.norm.eps = s.number("norm_eps", m.norm.eps);
  m.positions.kind = s.choice("positions", m.positions.kind, kPositionKinds);
  m.positions.rope_base = s.number("rope_theta", m.positions.rope_base);
  m.positions.partial_rotary_factor = s.number("partial_rotary_factor", m.positions.partial_rotary_factor);
  m.positions.rope_interleaved = s.boolean("rope_interleaved", m.positions.rope_interleaved);
  m.positions.alibi_trainable = s.boolean("alibi_trainable", m.positions.alibi_trainable);
  m.positions.segment_length = s.integer("segment_length", m.positions.segment_length, 0);
  m.positions.memory_length = s.integer("memory_length", m.positions.segment_length, 0);
  m.positions.clamp_length = s.integer("clamp_length", m.positions.clamp_length, 0);
  m.max_length = s.integer("max_position_embeddings", m.max_length, 1);
  m.attention.window = s.integer("window_size", m.attention.window, -1);
  m.init_std = s.number("initializer_range", m.init_std);
  m.bos_token_id = s.integer("bos_token_id", m.bos_token_id, -1);
  m.eos_token_id = s.integer("eos_token_id", m.eos_token_id, -1);
  m.attention.normalizer = s.choice("normalizer", m.attention.normalizer, kNormalizerNames);
  m.attention.offset = s.choice("offset", m.attention.offset, kOffsetKinds);
  m.attention.offset_trainable = s.boolean("offset_trainable", m.attention.offset_trainable);
  m.attention.offset_init = s.number("offset_init", m.attention.offset_init);
  m.attention.sink_trainable = s.boolean("sink_trainable", m.attention.sink_trainable);
  m.attention.sink_init = s.number("sink_init", m.attention.sink_init);
  m.attention.gate = s.choice("attention_gate", m.attention.gate, kGateKinds);
  m.attention.distance_bias_window = s.integer("distance_bias_window", m.attention.distance_bias_window, 0);
  m.attention.distance_bias_init_std = s.number("distance_bias_init_std", m.attention.distance_bias_init_std);
  m.attention.distance_bias_init_apart = s.boolean("distance_bias_init_apart", m.attention.distance_bias_init_apart);
  ModelConfig check = m;
  check.vocab_size = std::max<int64_t>(m.vocab_size, 1);  // 0 is valid here: the caller replaces it later
  try {
    check.validate();
  } catch (const Error& e) {
    throw Error(fmt::format("{} ({})", e.what(), config.name()));
  }
  m.mlp.intermediate_size = m.intermediate();
  return m;
}

void check_tokenizer(const ModelConfig& config, uint64_t fingerprint, const std::string& source) {
  if (config.tokenizer_fingerprint != 0 && config.tokenizer_fingerprint != fingerprint) {
    fail("tokenizer", "{}: does not match the model: expected fingerprint {:016x} (config.json), found {:016x}", source,
         config.tokenizer_fingerprint, fingerprint);
  }
}

void check_corpus(const ModelConfig& config, uint64_t fingerprint, int64_t vocab_size, const std::string& source) {
  if (vocab_size > config.vocab_size) {
    fail("tokenizer", "{}: does not match the model: expected at most {} tokens (vocab_size in config.json), found {}",
         source, config.vocab_size, vocab_size);
  }
  check_tokenizer(config, fingerprint, source);
}

void check_range(int64_t value, std::string_view field, int64_t minimum, int64_t maximum) {
  if (value < minimum || value > maximum)
    fail("model", "{}: expected {} to {}, found {}", field, minimum, maximum, value);
}

}  // namespace lazy
