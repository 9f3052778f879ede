#include "core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace lazy {

namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

bool is_terminal(int fd) { return ::isatty(fd) != 0 && variable("TERM") != "dumb"; }
bool colours(int fd) { return is_terminal(fd) && variable("NO_COLOR").empty(); }

int terminal_width(int fd, int otherwise) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::string bold(const std::string& text, int fd) { return colours(fd) ? "\033[1m" + text + "\033[0m" : text; }

}  // namespace lazy
