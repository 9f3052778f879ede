// Typed access to the fields of config.json.
#pragma once
#include <fmt/ranges.h>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/text.h"
#include "model/config.h"

namespace lazy::config_json {

using nlohmann::json;

inline constexpr char kOperation[] = "config.json";

// Access to the fields of one JSON object. A field may have several names (Hugging Face's name first, then FLA's name).
// null is treated as absent, because transformers writes null for unset fields. If several names of a field are
// present, their values must be equal: which of them transformers uses depends on the model class.
class Fields {
 public:
  Fields(const json& root, const std::string& file) : root_(root), file_(file) {}

  const json* find(std::initializer_list<const char*> names) const {
    const json* first = nullptr;
    const char* first_name = nullptr;
    for (const char* name : names) {
      const auto found = root_.find(name);
      if (found == root_.end() || found->is_null()) continue;
      if (first && *found != *first) wrong(name, fmt::format("{} as in {}", shown(*first), first_name).c_str(), *found);
      if (!first) first = &*found, first_name = name;
    }
    return first;
  }

  [[noreturn]] void wrong(const char* name, const char* expected, const json& found) const {
    fail(kOperation, "{}: {}: expected {}, found {}", file_, name, expected, shown(found));
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
    if (!std::isfinite(value->get<double>())) wrong(*names.begin(), "a finite number", "NaN or Infinity");
    out = value->get<double>();
  }
  // Reads two numbers, low <= high; high may be infinite.
  void interval(const char* name, double& low, double& high) const {
    const json* value = find({name});
    if (!value) return;
    const bool numbers = value->is_array() && value->size() == 2 && (*value)[0].is_number() && (*value)[1].is_number();
    if (!numbers || !((*value)[0].get<double>() <= (*value)[1].get<double>())) {
      wrong(name, "two numbers, the lower one first", *value);
    }
    low = (*value)[0].get<double>();
    high = (*value)[1].get<double>();
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
  // Reads an enumeration value by name.
  template <class Table>
  void choice(const char* name, typename Table::Value& out, const Table& table) const {
    std::string text = table.name(out);
    string({name}, text);
    const auto value = table.find(text);
    if (!value) {
      fail(kOperation, "{}: {}: expected one of {}, found '{}'", file_, name, fmt::join(table.names(), ", "),
           to_valid_utf8(text.substr(0, 80)));
    }
    out = *value;
  }
  // Reads a token id; null sets `out` to -1 (no such token). Of a list of ids, such as the end-of-text tokens of Llama
  // 3, it reads the first one.
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
      wrong(name, fmt::format("none (this decoder does not support {})", what).c_str(), *value);
    }
  }
  // Throws an Error if the field is present and its value differs from `only`.
  void must_be(const char* name, double only) const {
    const json* value = find({name});
    if (value && !(value->is_number() && value->get<double>() == only)) {
      wrong(name, fmt::format("{} (other values are not supported by this decoder)", only).c_str(), *value);
    }
  }
  bool has(const char* name) const { return root_.contains(name); }  // true also for the value null
  const std::string& file() const { return file_; }

 private:
  static std::string shown(const json& value) {
    const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 80 ? to_valid_utf8(text.substr(0, 80)) + "..." : text;
  }

  const json& root_;
  const std::string& file_;
};

// Sets head_dim = hidden_size / num_heads. Throws an Error that names the field `name` if the division leaves a
// remainder.
void divide_heads(const Fields& fields, const char* name, ModelConfig& m);

// Reads num_attention_heads, num_key_value_heads and head_dim. If num_key_value_heads is absent, it is
// `default_kv_heads` (0: num_attention_heads); if it is null, it is num_attention_heads. The default of head_dim is
// hidden_size / num_attention_heads.
void read_grouped_heads(const Fields& fields, int64_t default_kv_heads, ModelConfig& m);

// Writes the sizes, the activation and the norm's epsilon under Llama's field names.
void write_sizes(const ModelConfig& m, nlohmann::ordered_json& out);

// True if this activation name of transformers denotes the tanh approximation of GELU.
bool is_gelu_tanh(const std::string& activation);

// Throws an Error if hidden_act is not SiLU.
void require_silu(const Fields& fields);

// These four functions read and write the base and scaling of RoPE, and the layers with a sliding window, in the
// formats of transformers 4 and 5.
void read_rope(const Fields& fields, ModelConfig& m);
void write_rope(const ModelConfig& m, nlohmann::ordered_json& out);
void read_window(const Fields& fields, const std::string& type, ModelConfig& m);
void write_window(const ModelConfig& m, nlohmann::ordered_json& out);

}  // namespace lazy::config_json
