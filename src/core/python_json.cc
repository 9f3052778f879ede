#include "core/python_json.h"

#include <cmath>
#include <cstdlib>
#include <limits>

namespace lazy {

namespace {

// NaN and infinite numbers are replaced by strings with this prefix, so that a standard JSON parser can read the text.
// A text that already contains this prefix is not rewritten.
constexpr std::string_view kStandIn = "lazy-number:";

bool is_hex(std::string_view text) {
  return text.size() == 4 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// If `text` starts with an escape \uXXXX, returns its UTF-16 code unit, otherwise -1.
int code_unit(std::string_view text) {
  if (!text.starts_with("\\u") || !is_hex(text.substr(2, 4))) return -1;
  return static_cast<int>(std::strtol(std::string(text.substr(2, 4)).c_str(), nullptr, 16));
}

bool is_high(int unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(int unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Copies the escape sequence at the start of `text` to `out` and returns its length in `text`. The escape of a lone
// surrogate is replaced by \ufffd.
size_t copy_escape(std::string_view text, std::string& out) {
  const int unit = code_unit(text);
  if (unit < 0) {
    out += text.substr(0, 2);
    return std::min<size_t>(2, text.size());
  }
  if (is_high(unit) && is_low(code_unit(text.substr(6)))) {
    out += text.substr(0, 12);
    return 12;
  }
  out += is_high(unit) || is_low(unit) ? std::string_view("\\ufffd") : text.substr(0, 6);
  return 6;
}

// Returns whether the text is a number that is outside of the range of a double and would become infinite.
bool is_infinite(const std::string& token) {
  char* end = nullptr;
  return !token.empty() && std::isinf(std::strtod(token.c_str(), &end)) && *end == '\0';
}

std::string stand_in(std::string_view number) { return '"' + std::string(kStandIn) + std::string(number) + '"'; }

std::string to_standard(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (in_string && c == '\\') {
      at += copy_escape(text.substr(at), out);
      continue;
    }
    in_string ^= c == '"';
    if (in_string || c == '"') {
      out += c;
      ++at;
      continue;
    }
    size_t end = at;
    if (c == '-' || (c >= '0' && c <= '9')) {
      end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
    }
    const std::string_view rest = text.substr(at);
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (rest.starts_with(word)) end = at + word.size();
    }
    const std::string token(text.substr(at, end - at));
    const bool word = token.find_first_of("NI") != std::string::npos;
    if (word || is_infinite(token)) {
      out += stand_in(word ? token : token.front() == '-' ? "-Infinity" : "Infinity");
      at = end;
    } else if (end > at) {
      out += token;
      at = end;
    } else {
      out += c;
      ++at;
    }
  }
  return out;
}

double special_float(const std::string& name) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return name == "NaN" ? std::nan("") : name.front() == '-' ? -infinity : infinity;
}

template <typename Json>
void restore_numbers(Json& value) {
  if (value.is_structured()) {
    for (Json& element : value) restore_numbers(element);
  } else if (value.is_string()) {
    const auto& text = value.template get_ref<const std::string&>();
    if (!text.starts_with(kStandIn)) return;
    value = special_float(text.substr(kStandIn.size()));
  }
}

}  // namespace

template <typename Json>
void restore_special_floats(Json& value) {
  if (value.is_object() && value.size() == 1 && value.contains("__float__") && value["__float__"].is_string()) {
    const std::string name = value["__float__"];
    if (name == "NaN" || name == "Infinity" || name == "-Infinity") value = special_float(name);
  } else if (value.is_structured()) {
    for (Json& element : value) restore_special_floats(element);
  }
}

template void restore_special_floats<nlohmann::json>(nlohmann::json&);

template <typename Json>
Json parse_python_json(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_discarded() || text.find(kStandIn) != std::string_view::npos) return json;
  json = Json::parse(to_standard(text), nullptr, false);
  if (!json.is_discarded()) restore_numbers(json);
  return json;
}

template nlohmann::json parse_python_json<nlohmann::json>(std::string_view);
template nlohmann::ordered_json parse_python_json<nlohmann::ordered_json>(std::string_view);

}  // namespace lazy
