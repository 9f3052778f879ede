// Time as it is measured, and the date as reports show it.
#pragma once
#include <chrono>
#include <string>

namespace lazy {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string today();  // "2026-01-31", where the machine is

}  // namespace lazy
