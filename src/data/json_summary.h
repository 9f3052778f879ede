// A JSON value in a message: plain values as they are, the others by kind (they may be large or nested deeply).
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace lazy {

template <typename Json>
std::string json_summary(const Json& value) {
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

}  // namespace lazy
