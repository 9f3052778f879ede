// Formats a number and its noun, in the singular or the plural, for messages.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace lazy {

// counted(1, "sample") is "1 sample", and counted(3, "sample") is "3 samples". The plural is formed with "s".
inline std::string counted(int64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}  // namespace lazy
