#include "core/percent.h"

#include <fmt/format.h>

namespace lazy {

std::string percent_number(double fraction, int digits) {
  std::string text = fmt::format("{:.{}f}", 100 * fraction, digits);
  if (text.starts_with('-') && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

}  // namespace lazy
