#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "core/terminal.h"

namespace lazy::log {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_color_mt(
        "lazy", colours(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never);
    // On a terminal a message overwrites the progress bar, which is then redrawn below the message.
    const std::string line_start = is_terminal(STDERR_FILENO) ? "\r\033[K" : "";
    made->set_pattern(line_start + "%H:%M:%S %^%l%$ %v");
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum level_of(int level) {
  return level <= 0 ? spdlog::level::debug : level == 1 ? spdlog::level::info : spdlog::level::warn;
}

}  // namespace

void message(int level, const std::string& text) { logger().log(level_of(level), text); }
void set_level(int level) { logger().set_level(level_of(level)); }

}  // namespace lazy::log
