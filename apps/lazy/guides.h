// The guides of docs/ as part of the program; cmake/EmbedGuides.cmake writes the source.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lazy::cli {

struct Guide {
  std::string topic;      // the file's name without its ending
  std::string_view text;  // Markdown
};
extern const std::vector<Guide> kGuides;  // in alphabetical order

}  // namespace lazy::cli
