// Typed access to the fields of a request's JSON object. Errors name the field. `null` is treated as absent.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "serve/openai/error.h"

namespace lazy::serve {

// Parses the body of a request. Throws ApiError if the body is not a JSON object.
nlohmann::json parse_body(const std::string& body);

// Describes the type of a JSON value for error messages, for example "an integer".
std::string type_of(const nlohmann::json& value);
// Throws ApiError 400 with the message "FIELD: PROBLEM".
[[noreturn]] void wrong_field(const std::string& field, const std::string& problem);
// Throws ApiError 400 with a message that is a complete sentence, for example "tools is not supported".
[[noreturn]] void refuse_field(const std::string& field, const std::string& sentence);

// Stores a reference to `object`, which must outlive this instance.
class Fields {
 public:
  // prefix: prepended to field names in messages, for example "stream_options."
  explicit Fields(const nlohmann::json& object, std::string prefix = "");

  const nlohmann::json* find(const std::string& name);  // null if the field is missing or null
  bool boolean(const std::string& name, bool fallback);
  int64_t integer(const std::string& name, int64_t fallback, int64_t low, int64_t high);
  double number(const std::string& name, double fallback, double low, double high);
  std::string string(const std::string& name, const std::string& fallback);
  std::string required_string(const std::string& name);
  std::vector<int64_t> ids(const std::string& name);  // an array of token ids; empty if the field is missing
  // Names of the fields that no call of the functions above has requested.
  std::vector<std::string> unknown() const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string> known_;
};

// Converts a JSON value to a token id. Throws ApiError with the field's name if it is not a token id.
int64_t token_id(const nlohmann::json& value, const std::string& field);

}  // namespace lazy::serve
