// Markdown as plain text for a terminal.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace lazy::cli {

struct MarkdownStyle {
  int width = 80;                                                 // columns
  std::function<std::string(const std::string&)> heading;         // emphasizes a heading
  std::function<std::string(const std::string& target)> replace;  // what stands for a link; "": its text
};

// Headings stand at the margin, all else two columns in. Paragraphs and list items are wrapped, code is left as it is.
// A table that is wider than the terminal becomes a list with a line for each cell.
std::string render_markdown(std::string_view markdown, const MarkdownStyle& style);

}  // namespace lazy::cli
