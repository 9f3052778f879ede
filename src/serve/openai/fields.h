// The fields of a request's JSON object: typed getters whose errors name the field. A null is as good as no field.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "serve/openai/error.h"

namespace lazy::serve {

// The body of a request. ApiError when it is not a JSON object.
nlohmann::json parse_body(const std::string& body);

// "an integer": a JSON value's type in an error message.
std::string type_of(const nlohmann::json& value);
// ApiError 400 for a field.
[[noreturn]] void wrong_field(const std::string& field, const std::string& problem);
// The same with a message that is a whole sentence: "tools is not supported".
[[noreturn]] void refuse_field(const std::string& field, const std::string& sentence);

// A view: the object must outlive it.
class Fields {
 public:
  // `prefix`: of the names in messages, "stream_options."
  explicit Fields(const nlohmann::json& object, std::string prefix = "");

  const nlohmann::json* find(const std::string& name);  // null when missing or null
  bool boolean(const std::string& name, bool fallback);
  int64_t integer(const std::string& name, int64_t fallback, int64_t low, int64_t high);
  double number(const std::string& name, double fallback, double low, double high);
  std::string string(const std::string& name, const std::string& fallback);
  std::string required_string(const std::string& name);
  std::vector<int64_t> ids(const std::string& name);  // an array of token ids; empty when missing
  // These are known and change nothing.
  void ignore(std::initializer_list<const char*> names);
  // What none of the calls above has named.
  std::vector<std::string> unknown() const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string> known_;
};

// A value as a token id; ApiError with the field's name otherwise.
int64_t token_id(const nlohmann::json& value, const std::string& field);

}  // namespace lazy::serve
