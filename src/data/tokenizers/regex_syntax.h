// Regular expressions of tokenizer.json, written in Oniguruma's Ruby syntax, for PCRE2.
#pragma once
#include <optional>
#include <string>

namespace lazy {

// The same expression in PCRE2's syntax (with PCRE2_UTF and PCRE2_UCP), or nothing if it contains a construct outside
// the subset for which both engines are known to find the same matches. The subset has literals, ".", "|", groups,
// lookahead and lookbehind, classes and their unions, general categories (\p{L}), \s \S \d \D \r \n \t \f, \uHHHH,
// \x{H}, (?i:...) around ASCII letters, and quantifiers. An expression that matches the empty text is outside of it:
// the engines continue differently after an empty match.
std::optional<std::string> pcre2_from_oniguruma(const std::string& pattern);

}  // namespace lazy
