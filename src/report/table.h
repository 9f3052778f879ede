// Tables of HTML cells, which scroll sideways where the page is narrow.
#pragma once
#include <string>

namespace lazy::report {

// All arguments are HTML. `below`: a smaller second line.
std::string with_line(const std::string& text, const std::string& below);
std::string table_column(const std::string& title);
std::string table_row(const std::string& title, const std::string& cells);
// columns: of table_column, the corner's first; rows: of table_row.
std::string table(const std::string& css_class, const std::string& columns, const std::string& rows);

}  // namespace lazy::report
