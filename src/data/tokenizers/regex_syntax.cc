#include "data/tokenizers/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "data/tokenizers/unicode.h"

namespace lazy {
namespace {

// Characters with the Unicode property White_Space. \s of PCRE2 also matches U+180E, which is not white space since
// Unicode 6.3.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// General categories that are accepted in \p{...}. Scripts are not accepted, because PCRE2 interprets \p{Han} as
// Script_Extensions, unlike Oniguruma. Cn (unassigned) is not accepted, because it depends on the Unicode version.
constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                            "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
constexpr int kMaxRepeat = 1000;  // maximum n in {n}; PCRE2 allows 65,535 but compiles the repeated part n times

struct Unsupported {};

// Recursive descent parser. Each function parses an expression, appends its translation to out_, and returns whether
// the expression can match the empty text (unless its comment says otherwise).
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  std::string run() {
    const bool empty = alternatives();
    if (empty || !rest_.empty()) throw Unsupported();
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return ahead < rest_.size() ? rest_[ahead] : '\0'; }
  char take() {
    if (rest_.empty()) throw Unsupported();
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool alternatives() {
    if (++depth_ > 50) throw Unsupported();
    bool empty = sequence();
    while (take("|")) {
      out_ += '|';
      empty = sequence() || empty;
    }
    --depth_;
    return empty;
  }

  bool sequence() {
    bool empty = true;
    while (!rest_.empty() && peek() != '|' && peek() != ')') empty = repeated() && empty;
    last_letter_ = '\0';
    return empty;
  }

  // Parses an atom (the smallest expression that can be repeated) and the quantifier after it, if any.
  bool repeated() {
    bool lookaround = false;
    const bool empty = atom(lookaround);
    const char c = peek();
    if (c != '*' && c != '+' && c != '?' && c != '{') return empty;
    last_letter_ = '\0';
    // If the repeated expression can match the empty text, the two engines end the loop at different positions, and
    // Oniguruma rejects some of these loops.
    if (lookaround || empty) throw Unsupported();
    const bool interval = c == '{';
    if (interval) {
      int least = 0;
      take();
      if (!number(least)) throw Unsupported();  // {,n} is a quantifier in Oniguruma, but literal text in older PCRE2
      bool range = false, unbounded = false;
      int most = least;
      if (take(",")) {
        range = true;
        unbounded = !number(most);
      }
      if (!take("}") || (!unbounded && most < least)) throw Unsupported();
      out_ += !range      ? fmt::format("{{{}}}", least)
              : unbounded ? fmt::format("{{{},}}", least)
                          : fmt::format("{{{},{}}}", least, most);
      if (!range && peek() == '?') throw Unsupported();  // x{n}? is a lazy x{n} in PCRE2, but (x{n})? in Ruby
      suffix(interval);
      return least == 0;
    }
    out_ += take();
    suffix(interval);
    return c != '+';
  }

  // Parses the character after a quantifier that makes it lazy (?) or possessive (+).
  void suffix(bool interval) {
    if (take("?")) {
      out_ += '?';
    } else if (peek() == '+') {
      if (interval) throw Unsupported();  // x{n,m}+ is possessive in PCRE2, but (x{n,m})+ in Ruby
      out_ += take();
    }
    const char c = peek();
    if (c == '*' || c == '+' || c == '?' || c == '{') throw Unsupported();
  }

  bool number(int& value) {
    if (!std::isdigit(static_cast<unsigned char>(peek()))) return false;
    value = 0;
    while (std::isdigit(static_cast<unsigned char>(peek()))) {
      value = value * 10 + (take() - '0');
      if (value > kMaxRepeat) throw Unsupported();
    }
    return true;
  }

  bool atom(bool& lookaround) {
    const char c = take();
    switch (c) {
      case '(':
        return group(lookaround);
      case '[':
        last_letter_ = '\0';
        out_ += "[";
        if (take("^")) {
          if (ignore_case_) throw Unsupported();
          out_ += '^';
        }
        members();
        out_ += ']';
        return false;
      case '.':
        if (ignore_case_) throw Unsupported();
        out_ += '.';
        return false;
      case '\\':
        last_letter_ = '\0';
        if (ignore_case_) throw Unsupported();
        escape(false);
        return false;
      case '^':
      case '$':
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']':
      case ')':
        throw Unsupported();
      default:
        literal(c);
        return false;
    }
  }

  bool group(bool& lookaround) {
    last_letter_ = '\0';
    bool ignore_case = ignore_case_;
    if (peek() != '?') {
      out_ += '(';
    } else if (take("?:")) {
      out_ += "(?:";
    } else if (take("?i:")) {
      out_ += "(?i:";
      ignore_case = true;
    } else {
      const std::string_view kinds[] = {"?=", "?!", "?<=", "?<!"};
      const auto kind = std::find_if(std::begin(kinds), std::end(kinds), [&](auto k) { return rest_.starts_with(k); });
      if (kind == std::end(kinds)) throw Unsupported();
      take(*kind);
      out_ += '(';
      out_ += *kind;
      lookaround = true;
    }
    std::swap(ignore_case, ignore_case_);
    const bool empty = alternatives();
    std::swap(ignore_case, ignore_case_);
    if (!take(")")) throw Unsupported();
    out_ += ')';
    return lookaround || empty;
  }

  void literal(char c) {
    if (ignore_case_) {
      if (static_cast<unsigned char>(c) >= 0x80) throw Unsupported();
      // Oniguruma's case folding maps these pairs to one letter, for example (?i:ss) matches U+00DF. PCRE2 does not.
      const auto lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      const std::string pair{last_letter_, lower};
      for (const char* folded : {"ss", "ff", "fi", "fl", "st"}) {
        if (pair == folded) throw Unsupported();
      }
      last_letter_ = lower;
    }
    character(c);
  }

  // Appends the UTF-8 character whose first byte is c, with a backslash if it is ASCII punctuation.
  void character(char c) {
    if (static_cast<unsigned char>(c) < 0x80 && std::ispunct(static_cast<unsigned char>(c))) out_ += '\\';
    out_ += c;
    while ((static_cast<unsigned char>(peek()) & 0xC0) == 0x80) out_ += take();
  }

  // Parses the digits of a hexadecimal escape, which must be a Unicode scalar value.
  void code_point(std::string_view digits) {
    uint32_t code = 0;
    if (digits.empty() || digits.size() > 6) throw Unsupported();
    for (const char c : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) throw Unsupported();
      code = code * 16 +
             static_cast<uint32_t>(std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) throw Unsupported();
    out_ += fmt::format("\\x{{{:X}}}", code);
  }

  // Parses an escape after the backslash. Returns whether it represents a single character, which may start or end a
  // range.
  bool escape(bool in_class) {
    const char c = take();
    switch (c) {
      case 's':
        out_ += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
        return false;
      case 'S':
        if (in_class) throw Unsupported();
        out_ += fmt::format("[^{}]", kWhiteSpace);
        return false;
      case 'd':
      case 'D':
        out_ += {'\\', c};
        return false;
      case 'r':
      case 'n':
      case 't':
      case 'f':
        out_ += {'\\', c};
        return true;
      case 'p':
      case 'P': {
        const size_t end = rest_.find('}');
        if (!take("{") || end == std::string_view::npos) throw Unsupported();
        const std::string_view name = rest_.substr(0, end - 1);
        if (std::find(std::begin(kCategories), std::end(kCategories), name) == std::end(kCategories))
          throw Unsupported();
        rest_.remove_prefix(end);
        out_ += fmt::format("\\{}{{{}}}", c, name);
        return false;
      }
      case 'u':
        if (rest_.size() < 4) throw Unsupported();
        code_point(rest_.substr(0, 4));
        rest_.remove_prefix(4);
        return true;
      case 'x': {
        const size_t end = rest_.find('}');
        if (!take("{") || end == std::string_view::npos) throw Unsupported();  // \xHH is a byte in Oniguruma
        code_point(rest_.substr(0, end - 1));
        rest_.remove_prefix(end);
        return true;
      }
      default:
        if (!std::ispunct(static_cast<unsigned char>(c)) && c != ' ') throw Unsupported();
        if (c != ' ') out_ += '\\';
        out_ += c;
        return true;
    }
  }

  // Parses the members of a character class up to its closing bracket. The members of a nested class are added to the
  // outer class.
  void members() {
    if (++depth_ > 50) throw Unsupported();
    bool first = true;
    while (!take("]")) {
      if (rest_.starts_with("&&")) throw Unsupported();
      if (take("[")) {
        if (peek() == ':' || peek() == '^' || peek() == ']') throw Unsupported();
        members();
        first = false;
        continue;
      }
      if (first && peek() == ']') throw Unsupported();
      if (peek() == '-' && peek(1) != ']' && !first) throw Unsupported();  // '-' after a range or after \p
      const bool single = member();
      first = false;
      if (single && peek() == '-' && peek(1) != ']') {
        take();
        if (peek() == '[' || peek() == '-' || peek() == '\0' || rest_.starts_with("&&")) throw Unsupported();
        out_ += '-';
        if (!member()) throw Unsupported();
      }
    }
    if (first) throw Unsupported();
    --depth_;
  }

  bool member() {
    const char c = take();
    if (c == '\\') {
      if (ignore_case_) throw Unsupported();
      return escape(true);
    }
    if (ignore_case_ && !std::isalpha(static_cast<unsigned char>(c))) throw Unsupported();
    character(c);
    return true;
  }

  std::string_view rest_;
  std::string out_;
  bool ignore_case_ = false;
  char last_letter_ = '\0';  // within (?i:...): the preceding character, in lower case, if it is a literal; else NUL
  int depth_ = 0;
};

}  // namespace

std::optional<std::string> pcre2_from_oniguruma(const std::string& pattern) {
  for (size_t at = 0; at < pattern.size(); at += utf8_length(pattern, at)) {
    if (utf8_length(pattern, at) == 0 || pattern[at] == '\0') return std::nullopt;
  }
  try {
    return Translator(pattern).run();
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

}  // namespace lazy
