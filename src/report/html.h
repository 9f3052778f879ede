// HTML pieces that all pages share: the page's frame, sections, figures, tables, numbers as text.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace lazy::report {

// A whole page in one file: styles inside, a footer, readable without a network. `body` is HTML.
std::string page(const std::string& title, const std::string& body);
std::string page_header(const std::string& eyebrow, const std::string& date, const std::string& title,
                        const std::string& detail, const std::string& more = "");
// Empty where the body is empty.
std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body);
std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class = "");
std::string code(const std::string& command);
// "<span class=run>swatch name</span>"; the index chooses colour and marker.
std::string series_name(size_t index, const std::string& name);
// A text with a smaller second line; both are HTML.
std::string with_line(const std::string& text, const std::string& below);

// Data cell; `html` is HTML.
struct Cell {
  Cell(std::string html_text = "", std::string css = "") : html(std::move(html_text)), css_class(std::move(css)) {}
  std::string html, css_class;
};

// A table that scrolls sideways where the page is narrow.
struct Table {
  struct Row {
    std::string title;  // HTML of the row's header cell
    std::vector<Cell> cells;
    std::string css_class = {};
  };
  const char* css_class = nullptr;
  bool column_scope = true, row_scope = true;  // header cells carry a scope attribute
  std::vector<Cell> columns = {};              // the first one heads the column of row titles
  std::vector<Row> rows = {};
};
std::string to_html(const Table& table);
// Of plain text, the first cell of each row being its title.
Table text_table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows);

// Coordinates and other SVG numbers: at most two decimals, no trailing zeros ("12.5", "3", "-0.25").
std::string coordinate(double value);
// `digits` decimals, with a typographic minus sign ("−1.00").
std::string fixed(double value, int digits);
// A share in [0, 1] as percent without the sign: "0.07", "7.3", "59.6"; zero is "0".
std::string percent(double share);
// Values whose range is smaller than this are equal as a page prints them: in pictures they are replaced by the value.
inline constexpr double kFlat = 5e-4;
// Large counts in groups of three, separated by thin spaces: "2 097 152".
std::string grouped(double count);

}  // namespace lazy::report
