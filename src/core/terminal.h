// What the terminal behind a file descriptor is good for.
#pragma once
#include <string>

namespace lazy {

bool is_terminal(int fd);                   // one that can move its cursor: not a file, not TERM=dumb
bool colours(int fd);                       // a terminal, and NO_COLOR (https://no-color.org) is unset or empty
int terminal_width(int fd, int otherwise);  // columns; `otherwise` where there is no terminal

std::string bold(const std::string& text, int fd);  // the text itself where colours() is false

}  // namespace lazy
