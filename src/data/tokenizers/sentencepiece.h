// SentencePiece models, using the SentencePiece library: tokenizer.model of Llama 2, and models that this program
// trains.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy {

// encode() encodes the names of control and unknown pieces (<s>, </s>, <unk>) in a text as ordinary characters.
class SentencePieceModel : public Tokenizer {
 public:
  virtual std::optional<int32_t> find_piece(const std::string& spelling) const = 0;
  virtual std::string spelling(int32_t id) const = 0;  // contains U+2581 for a space
  // Returns the tokenizer.json that save() writes for transformers, or "" if the model cannot be represented in that
  // format.
  virtual std::string tokenizer_json() const = 0;
};

// `serialized` is the content of a .model file; `name` identifies it in errors.
std::unique_ptr<SentencePieceModel> load_sentencepiece(std::string serialized, const std::string& name);

// Trains a lossless BPE model with `vocab_size` pieces: no normalization, no dummy prefix, white space is preserved,
// byte fallback for rare characters and line ends, and digits are separate pieces. Ids: <unk> 0, <s> 1, </s> 2, bytes
// 3..258. The same documents (valid UTF-8) give the same model on every machine. If the text is too short for
// `vocab_size`, the vocabulary is smaller and a warning is logged. Throws Error if vocab_size is too small for the
// alphabet.
std::unique_ptr<Tokenizer> train_sentencepiece(const std::vector<std::string>& documents, int64_t vocab_size);

}  // namespace lazy
