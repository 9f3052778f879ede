// SentencePiece models through SentencePiece's own library: Llama 2's tokenizer.model, and the models that we train.
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
  virtual std::string spelling(int32_t id) const = 0;  // with U+2581 for a space
  // The tokenizer.json that save() writes for transformers; empty where the model has no such form.
  virtual std::string tokenizer_json() const = 0;
};

// `serialized` is the content of a .model file; `name` names it in errors.
std::unique_ptr<SentencePieceModel> load_sentencepiece(std::string serialized, const std::string& name);

// Trains a BPE model of `vocab_size` pieces that is lossless: no normalization, no dummy prefix, white space kept, byte
// fallback for rare characters and line ends, digits separate. <unk> 0, <s> 1, </s> 2, bytes 3..258. The same documents
// (valid UTF-8) give the same model on every machine. Too little text for `vocab_size` gives a smaller vocabulary and a
// warning; a vocab_size that cannot hold the alphabet throws Error.
std::unique_ptr<Tokenizer> train_sentencepiece(const std::vector<std::string>& documents, int64_t vocab_size);

}  // namespace lazy
