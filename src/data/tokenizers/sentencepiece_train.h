// Training a SentencePiece tokenizer on text in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy {

// A BPE model of `vocab_size` pieces that gives every text back exactly: no normalization, no added prefix, white
// space kept, bytes for rare characters and for line ends, digits apart. <unk> 0, <s> 1, </s> 2, bytes 3..258.
// The same documents (valid UTF-8) give the same model on every machine. Too little text for so many pieces gives a
// smaller vocabulary and a warning; a vocab_size that cannot hold the alphabet throws Error.
std::unique_ptr<Tokenizer> train_sentencepiece(const std::vector<std::string>& documents, int64_t vocab_size);

}  // namespace lazy
