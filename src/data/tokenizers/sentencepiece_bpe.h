// A fast encoder for common SentencePiece models with the same result as the library. It supports BPE with byte
// fallback and identity normalization and without user-defined pieces (Llama 2, and the models that this program
// trains). It looks up merges by id and caches words, while the library looks up every pair by its text.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/merges.h"

namespace lazy {

struct SentencePiece {
  std::string text;
  float score;
  bool normal;  // false for control, unknown and byte pieces
};

// A merge rule of two pieces. sentencepiece_merges() returns all rules whose result is a piece, and rank 0 belongs to
// the merged piece with the highest score.
struct SentencePieceMerge {
  int32_t left, right, merged;
  uint32_t rank;
};
std::vector<SentencePieceMerge> sentencepiece_merges(const std::vector<SentencePiece>& pieces);

class SentencePieceBpe {
 public:
  // Returns null if a character of some piece is not a piece itself. `byte_ids` contains the 256 byte pieces.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<int32_t>& byte_ids);
  // Uses the given merges instead of the merges that follow from the scores.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<SentencePieceMerge>& merges,
                                                const std::vector<int32_t>& byte_ids);

  // Implements Tokenizer::cut() for models that add no prefix to a text. The text is cut at the start of a word.
  size_t cut(std::string_view text, size_t at) const;
  // Appends the ids of `text` (valid UTF-8, not empty). If `prefix` is true, the space symbol is prepended.
  void encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const;

 private:
  explicit SentencePieceBpe(size_t rules) : merges_(rules) {}
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t character(uint32_t code) const;  // returns the id of a character, or -1 if it has no piece
  MergeTable merges_;
  std::array<int32_t, 128> ascii_{};
  std::unordered_map<uint32_t, int32_t> characters_;
  std::vector<int32_t> byte_ids_;
  // A text can be cut before a space if no piece contains a space after a different character (cut_at_space_), and at a
  // line end if no piece contains a line end (cut_at_line_end_).
  bool cut_at_space_ = false, cut_at_line_end_ = false;
  CacheOwner owner_;
};

}  // namespace lazy
