#include "report/table.h"

namespace lazy::report {

std::string with_line(const std::string& text, const std::string& below) {
  return below.empty() ? text : text + "<small>" + below + "</small>";
}

std::string table_column(const std::string& title) { return "<th scope=\"col\">" + title + "</th>"; }

std::string table_row(const std::string& title, const std::string& cells) {
  return "<tr><th scope=\"row\">" + title + "</th>" + cells + "</tr>";
}

std::string table(const std::string& css_class, const std::string& columns, const std::string& rows) {
  return "<div class=\"scroll\"><table class=\"" + css_class + "\"><thead><tr>" + columns + "</tr></thead><tbody>" +
         rows + "</tbody></table></div>";
}

}  // namespace lazy::report
