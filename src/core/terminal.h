// Properties of the terminal that a file descriptor refers to.
#pragma once
#include <string>

namespace lazy {

bool is_terminal(int fd);  // whether fd is a terminal whose cursor can be moved; false for TERM=dumb
bool colours(int fd);      // whether fd is a terminal and NO_COLOR (https://no-color.org) is unset or empty
int terminal_width(int fd, int otherwise);  // number of columns, or `otherwise` if fd is not a terminal

std::string bold(const std::string& text, int fd);  // returns the unchanged text if colours() is false

}  // namespace lazy
