#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

namespace lazy {

std::string human_count(double n) {
  const char* const units[] = {"", "k", "M", "B", "T"};
  int unit = 0;
  while (std::abs(n) >= 999.5 && unit < 4) {
    n /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.3g}", n);
  return fmt::format("{:.{}f}{}", n, n < 10 ? 2 : n < 100 ? 1 : 0, units[unit]);
}

std::string human_bytes(double n) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (n >= 1024 && unit < 4) {
    n /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", n) : fmt::format("{:.1f} {}", n, units[unit]);
}

std::string human_seconds(double s) {
  if (!(s >= 0) || s > 1e9) return "?";
  const int64_t t = std::llround(s);
  if (t >= 3600) return fmt::format("{}:{:02}:{:02}", t / 3600, t / 60 % 60, t % 60);
  return fmt::format("{}:{:02}", t / 60, t % 60);
}

static size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

namespace {

constexpr size_t kShortestSharedWord = 4;

std::set<std::string> words(std::string_view name) {
  std::set<std::string> out;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of("_-."), name.size());
    if (end > 0) out.emplace(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return out;
}

}  // namespace

std::string with_shared_word(std::string_view name, const std::vector<std::string>& candidates) {
  const auto wanted = words(name);
  std::string best;
  size_t best_others = 0;
  for (const std::string& candidate : candidates) {
    const auto found = words(candidate);
    const auto shared = std::count_if(found.begin(), found.end(), [&](const std::string& w) {
      return w.size() >= kShortestSharedWord && wanted.contains(w);
    });
    if (shared == 0) continue;
    const size_t others = found.size() - static_cast<size_t>(shared);
    if (best.empty() || others < best_others || (others == best_others && candidate.size() < best.size())) {
      best = candidate;
      best_others = others;
    }
  }
  return best;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kSlip = 2;  // a name with at most two different letters is treated as a typo
  std::string best;
  size_t best_distance = std::max<size_t>(kSlip, word.size() / 2) + 1;
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best_distance <= kSlip) return best;
  const std::string shared = with_shared_word(word, candidates);
  return shared.empty() ? best : shared;
}

namespace {

// Returns the length of the UTF-8 character that starts at bytes[0], 0 if it is invalid, or -1 if it is valid so far
// but incomplete.
int utf8_character(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  int length = lead >= 0xC2 && lead <= 0xDF ? 2 : (lead & 0xF0) == 0xE0 ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (length == 0) return 0;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= bytes.size()) return -1;
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {  // rejects overlong forms, surrogates and values above U+10FFFF
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return 0;
  }
  return length;
}

}  // namespace

size_t complete_utf8_prefix(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const int length = utf8_character(bytes.substr(i));
    if (length < 0) return i;
    i += length == 0 ? 1 : static_cast<size_t>(length);
  }
  return i;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const int length = utf8_character(bytes.substr(i));
    if (length > 0) {
      out.append(bytes.substr(i, length));
      i += length;
    } else if (length < 0) {
      out += "\uFFFD";
      break;
    } else {
      out += "\uFFFD";
      ++i;
    }
  }
  return out;
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    uint64_t word;
    if (i + sizeof word <= bytes.size()) {  // fast path that checks eight ASCII characters in one step
      std::memcpy(&word, bytes.data() + i, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const int length = utf8_character(bytes.substr(i));
    if (length <= 0) return false;
    i += static_cast<size_t>(length);
  }
  return true;
}

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    switch (byte) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          out += fmt::format("\\x{:02x}", byte);
        } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
          out += fmt::format("\\u{:04x}", next);
          ++i;
        } else {
          out += text[i];
        }
    }
  }
  return out;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::string_view strip(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

namespace {

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string wrapped(const std::string& text, const std::string& indent, size_t columns) {
  std::string out;
  size_t column = 0;
  for (const std::string& word : split(text, ' ')) {
    if (!out.empty()) {
      const bool fits = column + 1 + word.size() <= columns;
      out += fits ? " " : "\n" + indent;
      column = fits ? column + 1 : indent.size();
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::string_view columns,
                           bool header_left) {
  const auto right_aligned = [&](size_t column) { return columns[std::min(column, columns.size() - 1)] == 'r'; };
  std::vector<size_t> widths;
  for (size_t c = 0; c < rows[0].size(); ++c) {
    // In Markdown, the separator of a right-aligned column has at least two characters, "-:".
    widths.push_back(right_aligned(c) ? 2 : 1);
    for (const auto& row : rows) widths[c] = std::max(widths[c], characters(row[c]));
  }
  std::string table, rule;
  for (size_t c = 0; c < widths.size(); ++c) {
    rule += "|" + (right_aligned(c) ? std::string(widths[c] - 1, '-') + ":" : std::string(widths[c], '-'));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string padding(widths[c] - characters(rows[r][c]), ' ');
      const bool right = right_aligned(c) && !(header_left && r == 0);
      table += "|" + (right ? padding + rows[r][c] : rows[r][c] + padding);
    }
    table += r == 0 ? "|\n" + rule + "|\n" : "|\n";
  }
  return table;
}

}  // namespace lazy
