// config.json of a Hugging Face folder, read and written.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "model/config.h"

namespace lazy {
namespace {

using nlohmann::json;

constexpr char kOperation[] = "config.json";

// Typed access to the file's fields. A field may have several names (Hugging Face's first, then FLA's); null counts as
// absent, as transformers writes it.
class Fields {
 public:
  Fields(const json& root, const std::string& file) : root_(root), file_(file) {}

  const json* find(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto found = root_.find(name);
      if (found != root_.end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  [[noreturn]] void wrong(const char* name, const char* expected, const json& found) const {
    std::string text = found.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 80) text = to_valid_utf8(text.substr(0, 80)) + "...";
    fail(kOperation, "{}: {}: expected {}, found {}", file_, name, expected, text);
  }

  void integer(std::initializer_list<const char*> names, int64_t& out) const {
    const json* value = find(names);
    if (!value) return;
    if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
      wrong(*names.begin(), "an integer", *value);
    }
    out = value->get<int64_t>();
  }
  void required_integer(std::initializer_list<const char*> names, int64_t& out) const {
    if (!find(names)) fail(kOperation, "{}: {}: expected an integer, found nothing", file_, *names.begin());
    integer(names, out);
  }
  void number(std::initializer_list<const char*> names, double& out) const {
    const json* value = find(names);
    if (!value) return;
    if (!value->is_number()) wrong(*names.begin(), "a number", *value);
    out = value->get<double>();
  }
  void boolean(std::initializer_list<const char*> names, bool& out) const {
    const json* value = find(names);
    if (!value) return;
    if (!value->is_boolean()) wrong(*names.begin(), "true or false", *value);
    out = value->get<bool>();
  }
  void string(std::initializer_list<const char*> names, std::string& out) const {
    const json* value = find(names);
    if (!value) return;
    if (!value->is_string()) wrong(*names.begin(), "a string", *value);
    out = value->get<std::string>();
  }
  // Llama 3 lists several end tokens; the first one is the text's.
  void token(const char* name, int64_t& out) const {
    if (root_.contains(name) && root_[name].is_null()) out = -1;
    const json* value = find({name});
    if (!value) return;
    if (value->is_array() && !value->empty() && value->front().is_number_integer()) {
      out = value->front().get<int64_t>();
    } else {
      integer({name}, out);
    }
  }
  void must_be_absent(const char* name, const char* what) const {
    const json* value = find({name});
    if (value && !(value->is_boolean() && !value->get<bool>())) {
      fail(kOperation, "{}: {}: {} are not supported by this decoder", file_, name, what);
    }
  }

 private:
  const json& root_;
  const std::string& file_;
};

// transformers 4 wrote rope_theta at the top and rope_scaling beside it, 5 writes rope_parameters.
void read_rope(const Fields& fields, const std::string& file, double& base) {
  fields.number({"rope_theta"}, base);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const json* rope = fields.find({name});
    if (!rope) continue;
    if (!rope->is_object()) fields.wrong(name, "an object", *rope);
    const Fields inner(*rope, file);
    std::string type = "default";
    inner.string({"rope_type", "type"}, type);
    if (type != "default") fail(kOperation, "{}: {}.rope_type: expected 'default', found '{}'", file, name, type);
    inner.number({"rope_theta"}, base);
  }
}

}  // namespace

ModelConfig ModelConfig::from_json(const json& root, const std::string& file) {
  if (!root.is_object()) fail(kOperation, "{}: expected a JSON object", file);
  const Fields fields(root, file);
  std::string type;
  fields.string({"model_type"}, type);
  if (type.empty()) fail(kOperation, "{}: model_type: expected llama or lazy_attention, found nothing", file);
  if (type != "llama" && type != "lazy_attention") {
    fail(kOperation, "{}: model_type: expected llama or lazy_attention, found '{}'", file, type);
  }
  ModelConfig m;
  fields.required_integer({"vocab_size"}, m.vocab_size);
  fields.required_integer({"hidden_size"}, m.hidden_size);
  fields.required_integer({"num_hidden_layers"}, m.num_layers);
  fields.required_integer({"num_attention_heads", "num_heads"}, m.num_heads);
  m.num_kv_heads = m.num_heads;
  fields.integer({"num_key_value_heads", "num_kv_heads"}, m.num_kv_heads);
  if (fields.find({"head_dim"})) {
    fields.integer({"head_dim"}, m.head_dim);
  } else {
    if (m.num_heads < 1 || m.hidden_size % m.num_heads != 0) {
      fail(kOperation, "{}: num_attention_heads: expected a divisor of hidden_size ({}), found {}", file, m.hidden_size,
           m.num_heads);
    }
    m.head_dim = m.hidden_size / m.num_heads;
  }
  fields.number({"hidden_ratio"}, m.hidden_ratio);
  fields.integer({"intermediate_size"}, m.intermediate_size);
  if (type == "llama" && m.intermediate_size == 0) fields.required_integer({"intermediate_size"}, m.intermediate_size);
  fields.boolean({"tie_word_embeddings"}, m.tie_embeddings);
  fields.number({"rms_norm_eps", "norm_eps"}, m.norm_eps);
  fields.integer({"max_position_embeddings"}, m.max_length);
  fields.number({"initializer_range"}, m.init_std);
  fields.token("bos_token_id", m.bos_token_id);
  fields.token("eos_token_id", m.eos_token_id);
  read_rope(fields, file, m.rope_base);
  if (type == "llama" && m.rope_base == 0) fail(kOperation, "{}: rope_theta: expected more than 1, found 0", file);
  fields.must_be_absent("attention_bias", "biases in the projections");
  fields.must_be_absent("mlp_bias", "biases in the MLP");
  std::string activation = "silu";
  fields.string({"hidden_act"}, activation);
  if (activation != "silu" && activation != "swish" && activation != "swiglu") {
    fail(kOperation, "{}: hidden_act: expected silu, found '{}'", file, activation);
  }
  if (type == "lazy_attention") {
    m.normalizer = "elastic";
    m.distance_bias_window = 512;
    fields.string({"normalizer"}, m.normalizer);
    fields.string({"offset"}, m.offset);
    fields.boolean({"offset_trainable"}, m.offset_trainable);
    fields.number({"offset_init"}, m.offset_init);
    fields.integer({"distance_bias_window"}, m.distance_bias_window);
    fields.number({"distance_bias_init_std"}, m.distance_bias_init_std);
    fields.integer({"sliding_window", "window_size"}, m.window);
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
  try {
    m.validate();
    m.intermediate_size = m.intermediate();
  } catch (const Error& e) {
    throw Error(fmt::format("config.json: {}: {}", file, std::string(e.what()).substr(std::string("model: ").size())));
  }
  return m;
}

ModelConfig ModelConfig::from_directory(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  const std::string text = read_file(path);
  try {
    return from_json(json::parse(text), path.string());
  } catch (const json::exception& e) {  // also a number that is out of range; the message may quote much of the file
    fail(kOperation, "{}: expected JSON: {}", path.string(), to_valid_utf8(std::string(e.what()).substr(0, 200)));
  }
}

nlohmann::ordered_json ModelConfig::to_json() const {
  nlohmann::ordered_json out;
  const bool llama = is_plain_llama();
  out["architectures"] = {llama ? "LlamaForCausalLM" : "LazyForCausalLM"};
  out["model_type"] = llama ? "llama" : "lazy_attention";
  out["vocab_size"] = vocab_size;
  out["hidden_size"] = hidden_size;
  out["intermediate_size"] = intermediate();
  out["num_hidden_layers"] = num_layers;
  out["num_attention_heads"] = num_heads;
  out["num_key_value_heads"] = num_kv_heads;
  out["head_dim"] = head_dim;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = norm_eps;
  out["rope_theta"] = rope_base;
  out["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", rope_base}};
  out["max_position_embeddings"] = max_length;
  out["tie_word_embeddings"] = tie_embeddings;
  out["initializer_range"] = init_std;
  out["attention_bias"] = false;
  out["mlp_bias"] = false;
  out["bos_token_id"] = bos_token_id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(bos_token_id);
  out["eos_token_id"] = eos_token_id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(eos_token_id);
  if (!llama) {
    out["normalizer"] = normalizer;
    out["offset"] = offset;
    out["offset_trainable"] = offset_trainable;
    out["offset_init"] = offset_init;
    out["distance_bias_window"] = distance_bias_window;
    out["distance_bias_init_std"] = distance_bias_init_std;
    out["sliding_window"] = window;
  }
  if (tokenizer_fingerprint != 0) out["tokenizer_fingerprint"] = fmt::format("{:016x}", tokenizer_fingerprint);
  return out;
}

}  // namespace lazy
