// Regular expressions over UTF-8 through PCRE2, for pre-tokenizers.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace lazy {

// Thread-safe. \s and \S mean Unicode's White_Space, as in the engines that the tokenizers were made with.
class Regex {
 public:
  // A pattern that does not compile throws Error: "`field`: ...". `field` names where the pattern came from.
  Regex(const std::string& pattern, const std::string& field);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Scans one text from left to right. `text` must be valid UTF-8.
  class Scanner {
   public:
    Scanner(const Regex& regex, std::string_view text);
    ~Scanner();
    Scanner(const Scanner&) = delete;
    Scanner& operator=(const Scanner&) = delete;
    // The next match that is not empty, at or after the last one's end.
    bool next(size_t* begin, size_t* end);

   private:
    const Regex& regex_;
    std::string_view text_;
    size_t at_ = 0;
    void* match_;
  };

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The pattern with \s and \S written out as White_Space, and a class within a class opened: the engine of the
// tokenizers takes their union, PCRE2 a bracket. Exposed for the tests.
std::string with_unicode_white_space(const std::string& pattern);

}  // namespace lazy
