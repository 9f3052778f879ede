#include "serve/openai/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace lazy::serve {
using nlohmann::json;

json parse_body(const std::string& body) {
  if (body.empty()) throw ApiError(400, "the request has no body: expected a JSON object", "", "invalid_json");
  json value;
  try {
    value = json::parse(body);
  } catch (const json::parse_error& e) {
    throw ApiError(400, fmt::format("the body is not valid JSON: error at byte {}", e.byte), "", "invalid_json");
  } catch (const json::exception&) {  // the only other error of the parser: a number is out of range
    throw ApiError(400, "the body is not valid JSON: a number is too large", "", "invalid_json");
  }
  if (!value.is_object()) {
    throw ApiError(400, "the body: expected a JSON object, found " + type_of(value), "", "invalid_json");
  }
  return value;
}

std::string type_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return "a boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return "an integer";
    case json::value_t::number_float:
      return "a number";
    case json::value_t::string:
      return "a string";
    case json::value_t::array:
      return "an array";
    default:
      return "an object";
  }
}

void wrong_field(const std::string& field, const std::string& problem) {
  throw ApiError(400, field + ": " + problem, field, "invalid_value");
}

void refuse_field(const std::string& field, const std::string& sentence) {
  throw ApiError(400, sentence, field, "invalid_value");
}

namespace {

[[noreturn]] void wrong_type(const std::string& field, const char* expected, const json& found) {
  throw ApiError(400, fmt::format("{}: expected {}, found {}", field, expected, type_of(found)), field, "invalid_type");
}

// Accepts integers, including integers that are written as 3.0.
bool is_integer(const json& value, int64_t& out) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    out = static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX));
    return true;
  }
  if (value.is_number_integer()) {
    out = value.get<int64_t>();
    return true;
  }
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  if (!(std::abs(number) < 0x1p53) || number != std::floor(number)) return false;
  out = static_cast<int64_t>(number);
  return true;
}

}  // namespace

int64_t token_id(const json& value, const std::string& field) {
  int64_t id = 0;
  if (!is_integer(value, id)) wrong_type(field, "a token id (an integer)", value);
  if (id < 0) wrong_field(field, fmt::format("expected a token id of 0 or more, found {}", id));
  return id;
}

Fields::Fields(const json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

const json* Fields::find(const std::string& name) {
  known_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::boolean(const std::string& name, bool fallback) {
  const json* value = find(name);
  if (!value) return fallback;
  if (!value->is_boolean()) wrong_type(prefix_ + name, "a boolean", *value);
  return value->get<bool>();
}

int64_t Fields::integer(const std::string& name, int64_t fallback, int64_t low, int64_t high) {
  const json* value = find(name);
  if (!value) return fallback;
  int64_t out = 0;
  if (!is_integer(*value, out)) wrong_type(prefix_ + name, "an integer", *value);
  if (out < low || out > high) {
    const bool above = high == INT64_MAX;
    wrong_field(prefix_ + name, above ? fmt::format("expected {} or more, found {}", low, out)
                                      : fmt::format("expected {} to {}, found {}", low, high, out));
  }
  return out;
}

double Fields::number(const std::string& name, double fallback, double low, double high) {
  const json* value = find(name);
  if (!value) return fallback;
  if (!value->is_number()) wrong_type(prefix_ + name, "a number", *value);
  const double out = value->get<double>();
  if (!(out >= low && out <= high)) {
    wrong_field(prefix_ + name, fmt::format("expected {} to {}, found {}", low, high, out));
  }
  return out;
}

std::string Fields::string(const std::string& name, const std::string& fallback) {
  const json* value = find(name);
  if (!value) return fallback;
  if (!value->is_string()) wrong_type(prefix_ + name, "a string", *value);
  return value->get<std::string>();
}

std::string Fields::required_string(const std::string& name) {
  if (!find(name)) throw ApiError(400, prefix_ + name + " is required", prefix_ + name, "missing_field");
  return string(name, "");
}

std::vector<int64_t> Fields::ids(const std::string& name) {
  const json* value = find(name);
  if (!value) return {};
  if (!value->is_array()) wrong_type(prefix_ + name, "an array of token ids", *value);
  std::vector<int64_t> out;
  out.reserve(value->size());
  for (const json& id : *value) out.push_back(token_id(id, prefix_ + name));
  return out;
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) out.push_back(prefix_ + name);
  }
  return out;
}

}  // namespace lazy::serve
