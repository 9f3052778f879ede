// A fast encoder for common SentencePiece models, with the same result as the library: BPE with byte fallback, identity
// normalization, no user-defined pieces (Llama 2's, and the models that we train). Merges are looked up by id and words
// are cached; the library looks up every pair by its text.
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
  bool normal;  // neither control, unknown nor byte
};

// All ways to form a piece from two others; rank 0 is the highest score.
struct SentencePieceMerge {
  int32_t left, right, merged;
  uint32_t rank;
};
std::vector<SentencePieceMerge> sentencepiece_merges(const std::vector<SentencePiece>& pieces);

class SentencePieceBpe {
 public:
  // Null when a character of some piece is not a piece itself. `byte_ids`: the 256 byte pieces.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<int32_t>& byte_ids);
  // With explicit merges instead of those implied by the scores.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<SentencePieceMerge>& merges,
                                                const std::vector<int32_t>& byte_ids);

  // Tokenizer::cut() for texts without a prefix: a word's beginning.
  size_t cut(std::string_view text, size_t at) const;
  // Appends the ids of `text` (valid UTF-8, not empty). `prefix` prepends the space symbol.
  void encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const;

 private:
  explicit SentencePieceBpe(size_t rules) : merges_(rules) {}
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t character(uint32_t code) const;  // its id, or -1 when it has no piece
  MergeTable merges_;
  std::array<int32_t, 128> ascii_{};
  std::unordered_map<uint32_t, int32_t> characters_;
  std::vector<int32_t> byte_ids_;
  bool cut_at_space_ = false,
       cut_at_line_end_ = false;  // no piece continues from a word into a space; none has a line end
  CacheOwner owner_;
};

}  // namespace lazy
