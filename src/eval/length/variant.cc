#include "eval/length/variant.h"

#include <charconv>

#include "core/error.h"
#include "core/text.h"

namespace lazy::eval::length {

ModelOptions parse_variant(const std::string& text, ModelOptions base) {
  if (text.empty()) return base;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (value.empty() || (key != "rope-base" && key != "positions" && key != "cache")) {
      fail("eval", "--variant {}: expected rope-base=X, positions=yarn:4 or cache=streaming:4+508, found '{}'", text,
           part);
    }
    if (key == "positions") base.positions = value;
    if (key == "cache") base.cache = value;
    if (key != "rope-base") continue;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), base.rope_base);
    if (error != std::errc() || end != value.data() + value.size() || !(base.rope_base > 1)) {
      fail("eval", "--variant {}: rope-base: expected a number above 1, found '{}'", text, value);
    }
  }
  return base;
}

}  // namespace lazy::eval::length
