#include "report/format.h"

#include <fmt/format.h>

#include <cmath>

namespace lazy::report {

std::string coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string fixed(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", std::fabs(value), digits);
  const bool zero = text.find_first_not_of("0.") == std::string::npos;
  return std::signbit(value) && !zero ? "\u2212" + text : text;
}

std::string percent(double share) {
  const double value = 100 * share, size = std::fabs(value);
  if (size < 1e-9) return "0";
  return fixed(value, size < 0.995 ? 2 : size < 99.95 ? 1 : 0);
}

std::string grouped(double count) {
  std::string digits = fmt::format("{:.0f}", std::fabs(count));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), "\u2009");
  return count < 0 ? "\u2212" + digits : digits;
}

}  // namespace lazy::report
