// The guides in docs/, embedded in the program. cmake/EmbedGuides.cmake generates guides.cc, which defines kGuides.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lazy::cli {

struct Guide {
  std::string topic;      // file name without extension
  std::string_view text;  // the guide in Markdown
};
extern const std::vector<Guide> kGuides;  // all guides, in alphabetical order of the topics

}  // namespace lazy::cli
