// The pre-tokenizers of byte-level BPE: regular expressions that split text into words. Merges never cross word
// boundaries.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// A PCRE2 regular expression over UTF-8. Thread-safe.
class Regex {
 public:
  // Throws Error for an invalid pattern. `field` names the origin of the pattern in the message.
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
    // Finds the next non-empty match after the end of the previous match.
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

inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A list of splitting steps, like Hugging Face's "Sequence". The first step splits the text into pieces; each further
// step splits the pieces that the previous step has produced.
class PreTokenizer {
 public:
  // Splits at matches of the pattern, which uses Oniguruma's syntax. Matches become pieces. The text between matches
  // also becomes pieces unless `only_matches` is set. Returns false and adds nothing if pcre2_from_oniguruma() does not
  // support the pattern.
  bool add_split(const std::string& pattern, const std::string& field, bool only_matches);
  // Splits at each occurrence of `text`, which must not be empty.
  void add_literal_split(const std::string& text, bool only_matches);
  // Prepends a space to pieces that do not start with a space.
  void add_prefix_space() {
    steps_.push_back({nullptr, false});
    description_ += "\3";
  }
  // The patterns of all steps. They are part of the fingerprint of a tokenizer.
  const std::string& description() const { return description_; }

  // Calls emit(word) for each word of `text`, in order. Sequences of bytes that are not valid UTF-8 are emitted as
  // separate words.
  template <typename Emit>
  void run(std::string_view text, Emit&& emit) const {
    while (!text.empty()) {
      const size_t valid = valid_prefix(text);
      if (valid > 0) step(0, text.substr(0, valid), emit);
      text.remove_prefix(valid);
      const size_t invalid = invalid_prefix(text);
      if (invalid > 0) emit(text.substr(0, invalid));
      text.remove_prefix(invalid);
    }
  }

 private:
  struct SplitStep {
    std::unique_ptr<Regex> regex;  // null: the step prepends a space instead of splitting
    bool only_matches;
  };
  template <typename Emit>
  void step(size_t number, std::string_view piece, Emit& emit) const {
    if (number == steps_.size()) {
      emit(piece);
      return;
    }
    const SplitStep& now = steps_[number];
    if (!now.regex) {
      if (piece.starts_with(' ')) {
        step(number + 1, piece, emit);
      } else {
        step(number + 1, " " + std::string(piece), emit);
      }
      return;
    }
    Regex::Scanner scanner(*now.regex, piece);
    size_t last = 0, begin, end;
    while (scanner.next(&begin, &end)) {
      if (begin > last && !now.only_matches) step(number + 1, piece.substr(last, begin - last), emit);
      step(number + 1, piece.substr(begin, end - begin), emit);
      last = end;
    }
    if (last < piece.size() && !now.only_matches) step(number + 1, piece.substr(last), emit);
  }
  static size_t valid_prefix(std::string_view text);    // number of bytes of valid UTF-8 at the start
  static size_t invalid_prefix(std::string_view text);  // number of bytes up to the next valid character
  std::vector<SplitStep> steps_;
  std::string description_;
};

}  // namespace lazy
