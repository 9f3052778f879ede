// Functions that measure elapsed time, and the current date for reports.
#pragma once
#include <chrono>
#include <ctime>
#include <string>

namespace lazy {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline std::string today() {  // the local date, for example "2026-01-31"
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
  return date;
}

}  // namespace lazy
