// Functions for log messages, which are written to stderr. (Results of commands are written to stdout and to files.)
#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>

namespace lazy::log {

void message(int level, const std::string& text);  // level: 0 debug, 1 info, 2 warning
void set_level(int level);

template <typename... Args>
void debug(fmt::format_string<Args...> f, Args&&... args) {
  message(0, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> f, Args&&... args) {
  message(1, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> f, Args&&... args) {
  message(2, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace lazy::log
