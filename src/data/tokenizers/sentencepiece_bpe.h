// A quick way to encode with SentencePiece models of the common kind, with the library's own result: BPE, bytes for
// unknown characters, no normalization but the space symbol, no user-defined pieces (Llama 2's, and those we train).
// The library looks up every pair of symbols by its text and builds a message a piece; here merges go by id and
// words are cached.
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

// Every way to make a piece of two others: (left, right, merged, rank), rank 0 for the highest score.
struct SentencePieceMerge {
  int32_t left, right, merged;
  uint32_t rank;
};
std::vector<SentencePieceMerge> sentencepiece_merges(const std::vector<SentencePiece>& pieces);

class SentencePieceBpe {
 public:
  // Null when some piece holds a character that is no piece itself: then only the library knows what merges.
  // `byte_ids`: the 256 byte pieces.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<int32_t>& byte_ids);
  // With merges that a file lists instead of those that scores imply.
  static std::unique_ptr<SentencePieceBpe> make(const std::vector<SentencePiece>& pieces,
                                                const std::vector<SentencePieceMerge>& merges,
                                                const std::vector<int32_t>& byte_ids);

  // Appends the ids of `text`: valid UTF-8, not empty, spaces as they are. `prefix` puts the space symbol before it.
  void encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const;

 private:
  explicit SentencePieceBpe(size_t rules) : merges_(rules) {}
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t character(uint32_t code) const;  // its id, or -1 when it has no piece
  MergeTable merges_;
  std::array<int32_t, 128> ascii_{};
  std::unordered_map<uint32_t, int32_t> characters_;
  std::vector<int32_t> byte_ids_;
  bool cut_at_space_ = false, cut_at_line_end_ = false;  // no piece crosses from a word to a space; none has a line end
  CacheOwner owner_;
};

}  // namespace lazy
