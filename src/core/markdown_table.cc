#include "core/markdown_table.h"

#include <algorithm>

namespace lazy {
namespace {

size_t characters(const std::string& text) {  // not bytes
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::string_view columns,
                           bool header_left) {
  const auto on_the_right = [&](size_t column) { return columns[std::min(column, columns.size() - 1)] == 'r'; };
  std::vector<size_t> widths;
  for (size_t c = 0; c < rows[0].size(); ++c) {
    widths.push_back(on_the_right(c) ? 2 : 1);  // a rule has a dash beside its colon
    for (const auto& row : rows) widths[c] = std::max(widths[c], characters(row[c]));
  }
  std::string table, rule;
  for (size_t c = 0; c < widths.size(); ++c) {
    rule += "|" + (on_the_right(c) ? std::string(widths[c] - 1, '-') + ":" : std::string(widths[c], '-'));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string padding(widths[c] - characters(rows[r][c]), ' ');
      const bool right = on_the_right(c) && !(header_left && r == 0);
      table += "|" + (right ? padding + rows[r][c] : rows[r][c] + padding);
    }
    table += r == 0 ? "|\n" + rule + "|\n" : "|\n";
  }
  return table;
}

}  // namespace lazy
