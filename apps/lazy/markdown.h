// Renders Markdown as plain text for a terminal.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace lazy::cli {

struct MarkdownStyle {
  int width = 80;                                          // width of the terminal in columns
  std::function<std::string(const std::string&)> heading;  // formats a heading
  // returns the text that replaces a link to `target`, or "" to keep only the link's text
  std::function<std::string(const std::string& target)> replace;
};

// Headings begin in the first column; all other lines are indented by two columns. Paragraphs and list items are
// wrapped; code is not changed. A table that is wider than the terminal becomes a list with one line per cell.
std::string render_markdown(std::string_view markdown, const MarkdownStyle& style);

}  // namespace lazy::cli
