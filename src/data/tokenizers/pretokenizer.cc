#include "data/tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

#include "core/error.h"
#include "data/tokenizers/regex_syntax.h"
#include "data/tokenizers/unicode.h"

namespace lazy {

namespace {

constexpr size_t kShortText = 64 << 10;
constexpr uint32_t kShortLimit = 20'000'000;

}  // namespace

struct Regex::Impl {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_context *context = nullptr, *short_context = nullptr;
  bool jit = false;
  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_match_context_free(short_context);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, const std::string& field) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> compile(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  // Only \n counts as a line end, so "." matches every character except \n. Without this call, the line end would
  // depend on how PCRE2 was built.
  pcre2_set_newline(compile.get(), PCRE2_NEWLINE_LF);
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(impl_->pattern.data()), impl_->pattern.size(),
                              // \C is forbidden, because it could match a part of a UTF-8 character.
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, compile.get());
  if (!impl_->code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    fail("tokenizer", "{}: expected a regular expression, found \"{}\": {}", field, pattern,
         reinterpret_cast<const char*>(message));
  }
  // If the system forbids just-in-time compilation, the slower interpreter is used.
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;
  impl_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(impl_->context, UINT32_MAX);  // no limit: a long run of spaces is valid and needs many steps
  pcre2_set_depth_limit(impl_->context, UINT32_MAX);
  // The match limit for short texts is so high that only patterns with exponential backtracking, such as (a+)+$, reach
  // it.
  impl_->short_context = pcre2_match_context_copy(impl_->context);
  pcre2_set_match_limit(impl_->short_context, kShortLimit);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Scanner::Scanner(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), match_(pcre2_match_data_create_from_pattern(regex.impl_->code, nullptr)) {}

Regex::Scanner::~Scanner() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_)); }

bool Regex::Scanner::next(size_t* begin, size_t* end) {
  const Impl& regex = *regex_.impl_;
  auto* match = static_cast<pcre2_match_data*>(match_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  if (at_ >= text_.size()) return false;
  pcre2_match_context* context = text_.size() <= kShortText ? regex.short_context : regex.context;
  const int found = regex.jit ? pcre2_jit_match(regex.code, subject, text_.size(), at_, PCRE2_NOTEMPTY, match, context)
                              : pcre2_match(regex.code, subject, text_.size(), at_, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK,
                                            match, context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(found, message, sizeof message);
    fail_run("tokenizer", "the pre-tokenizer's regular expression failed: {}", reinterpret_cast<const char*>(message));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
  *begin = bounds[0];
  *end = at_ = bounds[1];
  return true;
}

bool PreTokenizer::add_split(const std::string& pattern, const std::string& field, bool only_matches) {
  const auto translated = pcre2_from_oniguruma(pattern);
  if (!translated) return false;
  std::unique_ptr<Regex> regex;
  try {
    regex = std::make_unique<Regex>(*translated, field);
  } catch (const Error&) {
    return false;  // PCRE2 rejects, for example, a lookbehind of variable length
  }
  steps_.push_back({std::move(regex), only_matches});
  description_ += pattern + (only_matches ? "\1" : "\2");
  return true;
}

void PreTokenizer::add_literal_split(const std::string& text, bool only_matches) {
  std::string pattern;
  for (const char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) pattern += '\\';
    pattern += c;
  }
  steps_.push_back({std::make_unique<Regex>(pattern, "a literal"), only_matches});
  description_ += pattern + (only_matches ? "\1" : "\2");
}

size_t PreTokenizer::valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

size_t PreTokenizer::invalid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && utf8_length(text, at) == 0) ++at;
  return at;
}

}  // namespace lazy
