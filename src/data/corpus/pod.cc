// Converts POD, Perl's documentation format, to prose. The program pod2text is not suitable, because it keeps verbatim
// code, puts quotes around C<> and marks I<> with asterisks.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <unordered_map>

#include "core/text.h"
#include "data/corpus/documents.h"
#include "data/tokenizers/unicode.h"

namespace lazy {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (!surrogate && code < 0x110000) out += utf8_encode(code);
}

// Returns the character that the formatting code E<name> represents. Supports the names that perlpod lists, common
// Latin letters, and numbers.
std::string entity(const std::string& name) {
  static const std::unordered_map<std::string, uint32_t> kNames = {
      {"lt", '<'},       {"gt", '>'},       {"amp", '&'},    {"quot", '"'},     {"sol", '/'},      {"verbar", '|'},
      {"lchevron", 171}, {"rchevron", 187}, {"laquo", 171},  {"raquo", 187},    {"nbsp", ' '},     {"copy", 169},
      {"reg", 174},      {"aacute", 225},   {"agrave", 224}, {"acirc", 226},    {"auml", 228},     {"aring", 229},
      {"aelig", 230},    {"ccedil", 231},   {"egrave", 232}, {"eacute", 233},   {"ecirc", 234},    {"euml", 235},
      {"iacute", 237},   {"ntilde", 241},   {"oacute", 243}, {"ocirc", 244},    {"ouml", 246},     {"oslash", 248},
      {"uacute", 250},   {"uuml", 252},     {"szlig", 223},  {"Aring", 197},    {"Auml", 196},     {"Ouml", 214},
      {"Oslash", 216},   {"Uuml", 220},     {"Eacute", 201}, {"mdash", 0x2014}, {"hellip", 0x2026}};
  std::string out;
  if (const auto found = kNames.find(name); found != kNames.end()) {
    append_utf8(out, found->second);
  } else if (!name.empty() && std::isdigit(static_cast<unsigned char>(name[0]))) {
    append_utf8(out,
                // base 0 also accepts hexadecimal (0x) and octal numbers, as in perlpod
                static_cast<uint32_t>(std::strtoul(name.c_str(), nullptr, 0)));
  } else {
    out = name;
  }
  return out;
}

// Returns the text of a link: its label if present, otherwise its target.
std::string link(const std::string& inside) {
  if (const size_t bar = inside.find('|'); bar != std::string::npos) return inside.substr(0, bar);
  if (inside.find("://") != std::string::npos) return inside;
  const size_t slash = inside.find('/');
  if (slash == std::string::npos) return inside;
  std::string section = inside.substr(slash + 1);
  if (section.size() >= 2 && section.front() == '"' && section.back() == '"') {
    section = section.substr(1, section.size() - 2);
  }
  if (section.empty()) return inside.substr(0, slash);
  return slash == 0 ? "\"" + section + "\"" : "\"" + section + "\" in " + inside.substr(0, slash);
}

// Parses nested formatting codes: X<text> ends at the next '>'; X<<< text >>> ends at white space followed by the same
// number of '>'.
class Codes {
 public:
  explicit Codes(std::string_view text) : text_(text) {}
  std::string run() { return until(0); }

 private:
  std::string until(size_t brackets) {
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (brackets == 1 && c == '>') {
        ++at_;
        return out;
      }
      if (brackets > 1 && std::isspace(static_cast<unsigned char>(c))) {
        size_t end = at_;
        while (end < text_.size() && std::isspace(static_cast<unsigned char>(text_[end]))) ++end;
        if (text_.substr(end, brackets) == std::string(brackets, '>')) {
          at_ = end + brackets;
          return out;
        }
      }
      if (c >= 'A' && c <= 'Z' && at_ + 1 < text_.size() && text_[at_ + 1] == '<' && depth_ < 32) {
        out += code(c);
        continue;
      }
      out += c;
      ++at_;
    }
    return out;
  }

  std::string code(char kind) {
    const size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] == '<') ++at_;
    size_t brackets = at_ - begin;
    if (brackets > 1 && (at_ == text_.size() || !std::isspace(static_cast<unsigned char>(text_[at_])))) {
      brackets = 1;  // C<<STDIN>> is a code with one bracket, because no white space follows the second one
      at_ = begin + 1;
    }
    if (brackets > 1) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    }
    ++depth_;
    const std::string inside = until(brackets);
    --depth_;
    switch (kind) {
      case 'X':
      case 'Z':
        return "";
      case 'E':
        return entity(inside);
      case 'L':
        return link(inside);
      default:
        return inside;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

std::string unwrap(std::string_view paragraph) {
  const std::string text = Codes(paragraph).run();
  std::string out;
  bool space = false;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) {
      space = true;
      continue;
    }
    if (space && !out.empty()) out += ' ';
    space = false;
    out += c;
  }
  return out;
}

// Removes a list marker: "* text", "1. text", "2) text" -> "text".
std::string_view without_bullet(std::string_view item) {
  item = strip(item);
  if (item.starts_with("*")) return strip(item.substr(1));
  size_t digits = 0;
  while (digits < item.size() && std::isdigit(static_cast<unsigned char>(item[digits]))) ++digits;
  if (digits > 0 && (digits == item.size() || item[digits] == '.' || item[digits] == ')')) {
    return strip(item.substr(std::min(item.size(), digits + 1)));
  }
  return item;
}

class PodFilter {
 public:
  explicit PodFilter(bool keep_code) : keep_code_(keep_code) {}

  void paragraph(std::string_view text) {
    if (text.front() == '=' && text.size() > 1 && std::isalpha(static_cast<unsigned char>(text[1]))) {
      command(text);
    } else if (!in_pod_ || !skipped_.empty()) {
      return;
    } else if (text.front() == ' ' || text.front() == '\t') {
      if (keep_code_) emit(std::string(text));
    } else {
      emit(unwrap(text));
    }
  }
  std::string result() { return std::move(out_); }

 private:
  void command(std::string_view text) {
    size_t end = 1;
    while (end < text.size() && !std::isspace(static_cast<unsigned char>(text[end]))) ++end;
    const std::string_view name = text.substr(1, end - 1);
    const std::string_view rest = strip(text.substr(end));
    if (name == "end") {
      if (rest == skipped_) skipped_.clear();
      return;
    }
    if (!skipped_.empty()) return;
    in_pod_ = name != "cut";
    if (name == "begin" && !rest.starts_with(":")) {
      skipped_ = rest.substr(0, rest.find_first_of(" \t\n"));
    } else if (name.starts_with("head")) {
      emit(unwrap(rest));
    } else if (name == "item") {
      emit(unwrap(without_bullet(rest)));
    }
  }

  void emit(const std::string& text) {
    if (text.empty()) return;
    if (!out_.empty()) out_ += '\n';
    out_ += text;
    out_ += '\n';
  }

  bool keep_code_;
  bool in_pod_ = false;
  std::string skipped_;  // format of the =begin block that is being skipped; empty if none
  std::string out_;
};

}  // namespace

std::string pod_to_text(std::string_view pod, bool keep_code) {
  PodFilter filter(keep_code);
  size_t begin = 0, end = 0;  // begin and end of the current paragraph in `pod`
  const auto flush = [&] {
    if (end > begin) filter.paragraph(pod.substr(begin, end - begin));
  };
  for (size_t at = 0; at < pod.size();) {
    const size_t stop = std::min(pod.find('\n', at), pod.size());
    const size_t next = std::min(stop + 1, pod.size());
    const bool blank = pod.substr(at, stop - at).find_first_not_of(" \t\r") == std::string_view::npos;
    if (blank) {
      flush();
      begin = end = next;
    } else {
      end = stop;
    }
    at = next;
  }
  flush();
  return filter.result();
}

}  // namespace lazy
