#include "markdown.h"

#include <algorithm>
#include <regex>
#include <vector>

#include "core/text.h"

namespace lazy::cli {
namespace {

constexpr size_t kMargin = 2;

// Returns the width of the text in columns. Every character is assumed to be one column wide.
size_t columns(std::string_view text) { return static_cast<size_t>(count_characters(text)); }

std::string padded(const std::string& text, size_t width) {
  const size_t used = columns(text);
  return used < width ? text + std::string(width - used, ' ') : text;
}

// Wraps `text` into lines of at most `width` columns. The first line begins with `first`; the other lines are indented
// by the same width.
std::string wrapped(const std::string& text, const std::string& first, size_t width) {
  const std::string indent(columns(first), ' ');
  std::string out, line = first;
  bool empty = true;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    if (!empty && columns(line) + 1 + columns(word) > width) {
      out += line + "\n";
      line = indent;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return out + line + "\n";
}

class Renderer {
 public:
  explicit Renderer(const MarkdownStyle& style)
      : style_(style), width_(static_cast<size_t>(std::max(style.width, 30))) {}

  std::string render(std::string_view markdown) {
    bool code = false;
    for (const std::string& line : split(std::string(markdown), '\n')) {
      if (line.starts_with("```")) {
        flush();
        code = !code;
      } else if (code) {
        out_ += line.empty() ? "\n" : std::string(2 * kMargin, ' ') + line + "\n";
      } else {
        text_line(line);
      }
    }
    flush();
    out_.erase(out_.find_last_not_of('\n') + 1);
    return out_ + "\n";
  }

 private:
  void text_line(const std::string& line) {
    static const std::regex item(R"(^( *)(-|[0-9]+\.) +(.*)$)");
    std::smatch match;
    if (strip(line).empty()) {
      flush();
      if (!out_.empty() && !out_.ends_with("\n\n")) out_ += "\n";
    } else if (line.starts_with("#")) {
      flush();
      out_ += style_.heading(inline_text(std::string(strip(line.substr(line.find_first_not_of('#')))))) + "\n";
    } else if (line.starts_with("|")) {
      if (table_.empty()) flush();
      table_.push_back(cells(line));
    } else if (std::regex_match(line, match, item)) {
      flush();
      first_ = std::string(kMargin, ' ') + match[1].str() + match[2].str() + " ";
      paragraph_ = match[3];
    } else {
      if (!table_.empty()) flush();
      paragraph_ += " " + std::string(strip(line));
    }
  }

  std::string inline_text(const std::string& text) const {
    static const std::regex image(R"(!\[[^\]]*\]\([^)]*\))"), link(R"(\[([^\]]*)\]\(([^)]*)\))");
    const std::string from = std::regex_replace(text, image, "");
    std::string out;
    auto at = from.cbegin();
    for (std::sregex_iterator n(from.begin(), from.end(), link), end; n != end; ++n) {
      out.append(at, from.cbegin() + n->position());
      const std::string replacement = style_.replace((*n)[2]);
      const std::string shown = (*n)[1];
      // Insert the replacement (a `lazy help` command). If the text of the link is the file name of its target, only
      // the replacement is printed. Otherwise it follows the text in parentheses, or after a colon if the link itself
      // is in parentheses.
      const std::string target = (*n)[2];
      const bool named = target.starts_with(shown) || target.substr(target.rfind('/') + 1).starts_with(shown);
      const bool in_parentheses = out.ends_with('(');
      out += replacement.empty() ? shown
             : named             ? replacement
             : in_parentheses    ? shown + ": " + replacement
                                 : shown + " (" + replacement + ")";
      at = from.cbegin() + n->position() + n->length();
    }
    out.append(at, from.cend());
    return std::regex_replace(out, std::regex(R"(\*\*)"), "");
  }

  std::vector<std::string> cells(const std::string& line) const {
    std::vector<std::string> out;
    const std::string_view inner = strip(line);
    for (const std::string& cell : split(std::string(inner.substr(1, inner.size() - 2)), '|'))
      out.push_back(inline_text(std::string(strip(cell))));
    return out;
  }

  void flush() {
    if (!table_.empty()) print_table();
    if (!strip(paragraph_).empty()) out_ += wrapped(inline_text(paragraph_), first_, width_);
    paragraph_.clear();
    first_ = std::string(kMargin, ' ');
  }

  void print_table() {
    // remove the line of dashes between the header and the cells
    if (table_.size() > 1) table_.erase(table_.begin() + 1);
    std::vector<size_t> widths;
    for (const auto& row : table_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t n = 0; n < row.size(); ++n) widths[n] = std::max(widths[n], columns(row[n]));
    }
    size_t total = kMargin;
    for (const size_t width : widths) total += width + 2;
    const std::string margin(kMargin, ' ');
    for (size_t r = 0; r < table_.size(); ++r) {
      const auto& row = table_[r];
      if (total <= width_ + 2) {
        std::string line = margin;
        for (size_t n = 0; n < row.size(); ++n) line += padded(row[n], widths[n]) + "  ";
        out_ += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      } else if (r > 0) {  // print each cell with its column header
        for (size_t n = 0; n < row.size(); ++n) {
          const std::string name = n < table_[0].size() && !table_[0][n].empty() ? table_[0][n] + ": " : "";
          if (n == 0) {
            out_ += wrapped(row[n], margin + "- ", width_);
          } else if (!row[n].empty()) {
            out_ += wrapped(name + row[n], margin + "    ", width_);
          }
        }
      }
    }
    table_.clear();
  }

  const MarkdownStyle& style_;
  size_t width_;
  std::string out_, paragraph_, first_ = std::string(kMargin, ' ');
  std::vector<std::vector<std::string>> table_;
};

}  // namespace

std::string render_markdown(std::string_view markdown, const MarkdownStyle& style) {
  return Renderer(style).render(markdown);
}

}  // namespace lazy::cli
