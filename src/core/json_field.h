// A value in a JSON file together with its location. The typed getters throw errors with the file, the field, what was
// expected and what was found.
#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy {

// Formats a JSON value for messages: scalars as (shortened) text, arrays and objects by type.
template <typename Json>
std::string json_summary(const Json& value);

// A view of a JSON value, which must outlive the view. A missing field is represented by a view without a value.
template <typename Json>
class BasicJsonField {
 public:
  // `operation` is the start of error messages. `name` is the path inside the file, such as "model.vocab", or "" for
  // the top level.
  BasicJsonField(const char* operation, const Json& value, std::string file, std::string name = "")
      : BasicJsonField(operation, &value, std::move(file), std::move(name)) {}

  bool present() const;  // false if the field is missing or null
  bool has(const std::string& key) const;
  BasicJsonField operator[](const std::string& key) const;  // throws Error if the field is missing
  // Returns a view of the field, without a value if the field is missing. Throws Error if this value is not an object.
  BasicJsonField find(const std::string& key) const;
  BasicJsonField at(size_t index) const;
  size_t size() const;  // number of elements of an array

  std::string string() const;
  double number() const;              // null is converted to NaN, because JSON writers encode NaN as null
  bool boolean(bool fallback) const;  // returns `fallback` if the field is missing or null

  const Json& json() const { return *value_; }
  const Json* value() const { return value_; }  // null if the field is missing
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
