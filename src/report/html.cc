#include "report/html.h"

#include <fmt/format.h>

#include <cmath>

#include "core/text.h"
#include "report/plot.h"
#include "report/style.h"

namespace lazy::report {
namespace {

std::string class_attribute(const std::string& name) { return name.empty() ? "" : " class=\"" + name + "\""; }

}  // namespace

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
      "<title>{}</title><style>\n{}</style></head><body>\n{}<footer>lazy {}</footer>\n</body></html>\n",
      html_escape(title), style_sheet(), body, LAZY_VERSION);
}

std::string page_header(const std::string& eyebrow, const std::string& date, const std::string& title,
                        const std::string& detail, const std::string& more) {
  return fmt::format("<header><p class=\"eyebrow\">{}{}</p><h1>{}</h1><p class=\"lede\">{}</p>{}</header>\n",
                     html_escape(eyebrow), date.empty() ? "" : " · " + html_escape(date), html_escape(title),
                     html_escape(detail), more);
}

std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}{}</section>\n", id, html_escape(title),
                     lead.empty() ? "" : "<p class=\"lead\">" + lead + "</p>", body);
}

std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class) {
  return fmt::format("<figure{}>{}{}</figure>\n", class_attribute(css_class), picture,
                     caption.empty() ? "" : "<figcaption>" + caption + "</figcaption>");
}

std::string code(const std::string& command) { return "<code>" + html_escape(command) + "</code>"; }

std::string series_name(size_t index, const std::string& name) {
  return fmt::format("<span class=\"run\">{}{}</span>", swatch(series_class(index), series_mark(index)),
                     html_escape(name));
}

std::string with_line(const std::string& text, const std::string& below) {
  return below.empty() ? text : text + "<small>" + below + "</small>";
}

std::string to_html(const Table& table) {
  std::string out = fmt::format("<div class=\"scroll\"><table{}><thead><tr>",
                                table.css_class ? fmt::format(" class=\"{}\"", table.css_class) : "");
  for (const Cell& column : table.columns) {
    out += fmt::format("<th{}{}>{}</th>", table.column_scope ? " scope=\"col\"" : "", class_attribute(column.css_class),
                       column.html);
  }
  out += "</tr></thead><tbody>";
  for (const Table::Row& row : table.rows) {
    out += fmt::format("<tr{}><th{}>{}</th>", class_attribute(row.css_class), table.row_scope ? " scope=\"row\"" : "",
                       row.title);
    for (const Cell& cell : row.cells) out += fmt::format("<td{}>{}</td>", class_attribute(cell.css_class), cell.html);
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

Table text_table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows) {
  Table table;
  for (const std::string& column : columns) table.columns.push_back(html_escape(column));
  for (const auto& row : rows) {
    Table::Row& out = table.rows.emplace_back();
    out.title = html_escape(row.front());
    for (size_t i = 1; i < row.size(); ++i) out.cells.push_back(html_escape(row[i]));
  }
  return table;
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string fixed(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", std::fabs(value), digits);
  const bool zero = text.find_first_not_of("0.") == std::string::npos;
  return std::signbit(value) && !zero ? "\u2212" + text : text;
}

std::string percent(double share) {
  const double value = 100 * share, size = std::fabs(value);
  if (size < 1e-9) return "0";
  return fixed(value, size < 0.995 ? 2 : size < 99.95 ? 1 : 0);
}

std::string grouped(double count) {
  std::string digits = fmt::format("{:.0f}", std::fabs(count));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), "\u2009");
  return count < 0 ? "\u2212" + digits : digits;
}

}  // namespace lazy::report
