// The parts of config.json about positions: RoPE's base and scaling, sliding windows.
#include <algorithm>
#include <cmath>

#include "model/config_json.h"

namespace lazy::config_json {
namespace {

// YaRN's factor on cosines and sines where the file gives mscale and mscale_all_dim (DeepSeek's form) in its place.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  return scale(mscale) / scale(mscale_all_dim);
}

void read_yarn(const Fields& rope, const ModelConfig& m, ops::RopeScaling& s) {
  if (!rope.find({"factor"})) s.factor = static_cast<double>(m.max_length) / static_cast<double>(s.original_length);
  double mscale = 0, mscale_all_dim = 0;
  rope.number({"mscale"}, mscale);
  rope.number({"mscale_all_dim"}, mscale_all_dim);
  if (mscale != 0 && mscale_all_dim != 0) s.attention_factor = yarn_attention_factor(s.factor, mscale, mscale_all_dim);
  rope.number({"attention_factor"}, s.attention_factor);
  rope.number({"beta_fast"}, s.beta_fast);
  rope.number({"beta_slow"}, s.beta_slow);
  rope.boolean({"truncate"}, s.truncate);
}

bool is_layer_type(const std::string& name) { return name == "full_attention" || name == "sliding_attention"; }

}  // namespace

// transformers 4 wrote rope_theta at the top and rope_scaling beside it; 5 writes rope_parameters, and takes
// rope_scaling where both are there.
void read_rope(const Fields& fields, ModelConfig& m) {
  fields.number({"rope_theta"}, m.positions.rope_base);
  std::string model_type;
  fields.string({"model_type"}, model_type);
  if (model_type != "lazy_attention")
    fields.must_be("partial_rotary_factor", 1);  // ours: read with what is Lazy Attention's
  const json* scaling = fields.find({"rope_scaling"});
  const bool old = scaling && !(scaling->is_object() && scaling->empty());
  const char* name = old ? "rope_scaling" : "rope_parameters";
  const json* rope = fields.find({name});
  if (!rope) return;
  if (!rope->is_object()) fields.wrong(name, "an object", *rope);
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (rope->contains(layers))
      fail(kOperation, "{}: {}.{}: expected one RoPE for all layers", fields.file(), name, layers);
  }
  const Fields inner(*rope, fields.file());
  ops::RopeScaling& s = m.positions.rope_scaling;
  std::string type = "default";
  inner.string({"rope_type", "type"}, type);
  inner.number({"rope_theta"}, m.positions.rope_base);
  inner.must_be("partial_rotary_factor", 1);
  if (type == "default") return;
  if (type != "linear" && type != "dynamic" && type != "llama3" && type != "yarn") {
    fail(kOperation, "{}: {}.rope_type: expected default, linear, dynamic, llama3 or yarn, found '{}'", fields.file(),
         name, to_valid_utf8(type.substr(0, 80)));
  }
  s.type = type;
  if (type != "yarn" && !inner.find({"factor"})) {
    fail(kOperation, "{}: {}.factor: expected a number, found nothing", fields.file(), name);
  }
  inner.number({"factor"}, s.factor);
  if (type != "linear") s.original_length = m.max_length;
  if (type == "llama3" || type == "yarn") {
    inner.integer({"original_max_position_embeddings"}, s.original_length);
    fields.integer({"original_max_position_embeddings"}, s.original_length);
    if (s.original_length < 1)
      fail(kOperation, "{}: {}.original_max_position_embeddings: expected at least 1, found {}", fields.file(), name,
           s.original_length);
  }
  if (type == "llama3") {
    inner.number({"low_freq_factor"}, s.low_frequency);
    inner.number({"high_freq_factor"}, s.high_frequency);
  }
  if (type == "yarn") read_yarn(inner, m, s);
}

void write_rope(const ModelConfig& m, nlohmann::ordered_json& out) {
  const ops::RopeScaling& s = m.positions.rope_scaling;
  out["rope_theta"] = m.positions.rope_base;
  if (s.type == "none") {
    out["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", m.positions.rope_base}};
    return;
  }
  nlohmann::ordered_json rope = {{"rope_type", s.type}, {"factor", s.factor}};
  if (s.type == "llama3" || s.type == "yarn") rope["original_max_position_embeddings"] = s.original_length;
  if (s.type == "llama3") {
    rope["low_freq_factor"] = s.low_frequency;
    rope["high_freq_factor"] = s.high_frequency;
  }
  if (s.type == "yarn") {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
    if (!s.truncate) rope["truncate"] = false;
  }
  out["rope_scaling"] = rope;
  rope["rope_theta"] = m.positions.rope_base;
  out["rope_parameters"] = rope;
}

// Mistral's window is every layer's, gpt-oss's every second one's unless layer_types says otherwise. Qwen's has a
// switch, and serves the layers that layer_types names, or else those from max_window_layers on.
void read_window(const Fields& fields, const std::string& type, ModelConfig& m) {
  if (type == "llama") return;
  if (type == "lazy_attention") return fields.integer({"sliding_window", "window_size"}, m.attention.window);
  const bool always = type == "mistral" || type == "gpt_oss";
  bool used = always;
  fields.boolean({"use_sliding_window"}, used);
  used |= always;
  if (used && !fields.has("sliding_window")) m.attention.window = type == "gpt_oss" ? 128 : 4096;
  if (used) fields.integer({"sliding_window"}, m.attention.window);
  if (type == "mistral") return;
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
        fail(kOperation, "{}: layer_types: sliding_attention: expected a sliding_window in use, found none",
             fields.file());
      }
    }
  } else if (m.attention.window > 0 && type == "gpt_oss") {
    for (int64_t i = 1; i < std::min(m.num_layers, int64_t{1} << 14); i += 2) full.push_back(i);
  } else if (m.attention.window > 0) {
    int64_t first = 28;
    fields.integer({"max_window_layers"}, first);
    // num_hidden_layers is not checked yet: no list as long as a damaged file may say.
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
  if (transformers_class == "MistralForCausalLM") return;
  if (transformers_class != "GptOssForCausalLM") {
    out["use_sliding_window"] = m.attention.window > 0;
    if (m.attention.window < 0) return;
    int64_t first = 0;  // what transformers before 4.53 goes by
    while (first < m.num_layers && m.window_of(first) < 0) ++first;
    out["max_window_layers"] = first;
  }
  out["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < m.num_layers; ++i) {
    out["layer_types"].push_back(m.window_of(i) < 0 ? "full_attention" : "sliding_attention");
  }
}

}  // namespace lazy::config_json
