// HTML elements that all pages share: page frame, sections, figures, tables, and numbers as text.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace lazy::report {

// A complete page in one file with embedded styles and a footer; it loads nothing from the network. `body` is HTML.
std::string page(const std::string& title, const std::string& body);
std::string page_header(const std::string& eyebrow, const std::string& date, const std::string& title,
                        const std::string& detail, const std::string& more = "");
// Returns an empty string if the body is empty.
std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body);
std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class = "");
std::string code(const std::string& command);
// Returns "<span class=run>swatch name</span>"; the index selects color and marker.
std::string series_name(size_t index, const std::string& name);
// A text with a smaller second line; both are HTML.
std::string with_line(const std::string& text, const std::string& below);

// A data cell; the string is inserted as HTML without escaping.
struct Cell {
  Cell(std::string html_text = "", std::string css = "") : html(std::move(html_text)), css_class(std::move(css)) {}
  std::string html, css_class;
};

// A table that scrolls horizontally on narrow pages.
struct Table {
  struct Row {
    std::string title;  // HTML of the row's header cell
    std::vector<Cell> cells;
    std::string css_class = {};
  };
  const char* css_class = nullptr;
  bool column_scope = true, row_scope = true;  // header cells carry a scope attribute
  std::vector<Cell> columns = {};              // the first is the heading of the column of row titles
  std::vector<Row> rows = {};
};
std::string to_html(const Table& table);
// A table of plain text. The first cell of each row is the title of the row.
Table text_table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows);

// A number for SVG, such as a coordinate: at most two decimals, no trailing zeros ("12.5", "3", "-0.25").
std::string coordinate(double value);
// A number with `digits` decimals and a typographic minus sign ("−1.00").
std::string fixed(double value, int digits);
// A fraction in [0, 1] as percent without the percent sign: "0.07", "7.3", "59.6"; zero is "0".
std::string percent(double share);
// Values whose range is below this limit look equal on a page. Instead of a figure the page then shows the value.
inline constexpr double kFlat = 5e-4;
// Large counts in groups of three, separated by thin spaces: "2 097 152".
std::string grouped(double count);

}  // namespace lazy::report
