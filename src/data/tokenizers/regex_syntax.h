// Translates the regular expressions of tokenizer.json from Oniguruma's Ruby syntax to PCRE2.
#pragma once
#include <optional>
#include <string>

namespace lazy {

// Returns the same expression in PCRE2 syntax (with PCRE2_UTF and PCRE2_UCP). Returns nullopt if it uses a construct
// outside of the subset for which both engines are known to find the same matches. The subset contains literals, ".",
// "|", groups, lookahead and lookbehind, character classes and their unions, general categories (\p{L}), \s \S \d \D \r
// \n \t \f, \uHHHH, \x{H}, (?i:...) around ASCII letters, and quantifiers. Expressions that match the empty text are
// not in the subset, because the engines continue differently after an empty match.
std::optional<std::string> pcre2_from_oniguruma(const std::string& pattern);

}  // namespace lazy
