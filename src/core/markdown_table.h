// Tables that read well on a terminal and are Markdown too: every column as wide as its widest cell.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// The first row is the header, and every row has as many cells. `columns` has an 'l' or 'r' for each column, where its
// cells stand; columns beyond it stand as its last. `header_left`: the header's cells stand on the left in any column.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::string_view columns,
                           bool header_left = false);

}  // namespace lazy
