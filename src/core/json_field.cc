#include "core/json_field.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace lazy {

template <typename Json>
std::string json_summary(const Json& value) {
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

template <typename Json>
void BasicJsonField<Json>::wrong(const std::string& expected) const {
  fail(operation_, "{}: expected {}, found {}", place(), expected, value_ ? json_summary(*value_) : "nothing");
}

template <typename Json>
bool BasicJsonField<Json>::present() const {
  return value_ && !value_->is_null();
}

template <typename Json>
bool BasicJsonField<Json>::has(const std::string& key) const {
  return value_ && value_->is_object() && value_->contains(key) && !value_->at(key).is_null();
}

template <typename Json>
BasicJsonField<Json> BasicJsonField<Json>::find(const std::string& key) const {
  if (!value_ || !value_->is_object()) wrong("an object");
  const auto found = value_->find(key);
  return {operation_, found == value_->end() ? nullptr : &*found, file_, name_.empty() ? key : name_ + "." + key};
}

template <typename Json>
BasicJsonField<Json> BasicJsonField<Json>::operator[](const std::string& key) const {
  BasicJsonField field = find(key);
  if (!field.value_) fail(operation_, "{}: {} is missing", file_, field.name_);
  return field;
}

template <typename Json>
BasicJsonField<Json> BasicJsonField<Json>::at(size_t index) const {
  if (index >= size()) fail(operation_, "{}: {} has {} entries, but entry {} is missing", file_, name_, size(), index);
  return {operation_, &(*value_)[index], file_, name_ + "[" + std::to_string(index) + "]"};
}

template <typename Json>
size_t BasicJsonField<Json>::size() const {
  if (!value_ || !value_->is_array()) wrong("a list");
  return value_->size();
}

template <typename Json>
std::string BasicJsonField<Json>::string() const {
  if (!value_ || !value_->is_string()) wrong("a string");
  return value_->template get<std::string>();
}

template <typename Json>
double BasicJsonField<Json>::number() const {
  if (value_ && value_->is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value_ || !value_->is_number()) wrong("a number");
  return value_->template get<double>();
}

template <typename Json>
bool BasicJsonField<Json>::boolean(bool fallback) const {
  if (!present()) return fallback;
  if (!value_->is_boolean()) wrong("true or false");
  return value_->template get<bool>();
}

template class BasicJsonField<nlohmann::json>;
template class BasicJsonField<nlohmann::ordered_json>;
template std::string json_summary(const nlohmann::json&);
template std::string json_summary(const nlohmann::ordered_json&);

}  // namespace lazy
