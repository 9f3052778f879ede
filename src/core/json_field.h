// A value inside a JSON file together with its place: typed getters whose errors name the file, the field, what was
// expected and what was found.
#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy {

// A JSON value for messages: scalars as text (shortened), arrays and objects by type.
template <typename Json>
std::string json_summary(const Json& value);

// A view: the JSON value must outlive it. Missing fields are views without a value.
template <typename Json>
class BasicJsonField {
 public:
  // `operation` begins the messages; `name` is the path inside the file, "model.vocab", empty for the top level.
  BasicJsonField(const char* operation, const Json& value, std::string file, std::string name = "")
      : BasicJsonField(operation, &value, std::move(file), std::move(name)) {}

  bool present() const;  // neither missing nor null
  bool has(const std::string& key) const;
  BasicJsonField operator[](const std::string& key) const;  // error when the field is missing
  BasicJsonField find(const std::string& key) const;        // may be missing; error when this is no object
  BasicJsonField at(size_t index) const;
  size_t size() const;  // of an array

  std::string string() const;
  double number() const;                // null is NaN, as JSON writers encode it
  double share() const;                 // finite and within [-1e-4, 1 + 1e-4], such as a mean of attention weights
  bool boolean(bool fallback) const;    // `fallback` when missing or null
  std::vector<double> numbers() const;  // an array of numbers
  std::vector<std::vector<double>> matrix() const;  // rows of equal length

  const Json& json() const { return *value_; }
  const Json* value() const { return value_; }  // null when missing
  const std::string& file() const { return file_; }
  const std::string& name() const { return name_; }
  std::string place() const { return file_ + ": " + (name_.empty() ? "top level" : name_); }
  [[noreturn]] void wrong(const std::string& expected) const;

 private:
  BasicJsonField(const char* operation, const Json* value, std::string file, std::string name)
      : operation_(operation), value_(value), file_(std::move(file)), name_(std::move(name)) {}
  const char* operation_;
  const Json* value_;
  std::string file_, name_;
};

extern template class BasicJsonField<nlohmann::json>;
extern template class BasicJsonField<nlohmann::ordered_json>;
extern template std::string json_summary(const nlohmann::json&);
extern template std::string json_summary(const nlohmann::ordered_json&);

using JsonField = BasicJsonField<nlohmann::json>;
using OrderedJsonField = BasicJsonField<nlohmann::ordered_json>;

}  // namespace lazy
