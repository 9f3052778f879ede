#include "serve/http/origin.h"

#include <algorithm>

namespace lazy::serve {

namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_scheme(std::string_view text) {
  return !text.empty() && is_lower(text.front()) && std::ranges::all_of(text, [](char c) {
    return is_lower(c) || is_digit(c) || c == '+' || c == '-' || c == '.';
  });
}

bool is_host(std::string_view text) {
  if (text.starts_with('[')) {  // an IPv6 address
    if (text.size() < 4 || !text.ends_with(']')) return false;
    return std::ranges::all_of(text.substr(1, text.size() - 2),
                               [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || c == ':' || c == '.'; });
  }
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_lower(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
  });
}

bool is_port(std::string_view scheme, std::string_view text) {
  if (text.empty() || text.size() > 5 || text.front() == '0' || !std::ranges::all_of(text, is_digit)) return false;
  if (text.size() == 5 && text > "65535") return false;
  return !(scheme == "http" && text == "80") && !(scheme == "https" && text == "443");
}

}  // namespace

bool is_origin(std::string_view text) {
  if (text == "null") return true;
  const size_t slashes = text.find("://");
  if (slashes == std::string_view::npos) return false;
  const std::string_view scheme = text.substr(0, slashes), rest = text.substr(slashes + 3);
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos && !is_port(scheme, rest.substr(colon + 1))) return false;
  return is_scheme(scheme) && is_host(rest.substr(0, colon));
}

}  // namespace lazy::serve
