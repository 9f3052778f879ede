// Defines checks for both readers of byte-level BPE files. The checks run after a reader has accepted its files.
#pragma once
#include "data/tokenizers/bpe.h"

#include "target.h"

namespace lazy::fuzz {

inline void use_tokenizer(BpeDefinition definition, std::string_view text) {
  const auto tokenizer = make_bpe_tokenizer(std::move(definition));
  tokenizer->fingerprint();
  for (const auto id : {tokenizer->bos_id(), tokenizer->eos_id()}) {
    require(!id || (*id >= 0 && *id < tokenizer->vocab_size()), "BOS and EOS are in the vocabulary");
  }
  const std::vector<int32_t> ids = tokenizer->encode(text.substr(0, 200));
  for (const int32_t id : ids) require(id >= 0 && id < tokenizer->vocab_size(), "ids are in the vocabulary");
  std::string pieces;
  for (const int32_t id : ids) pieces += tokenizer->piece(id);
  require(tokenizer->decode(ids) == pieces, "decode() returns the concatenated pieces");
}

}  // namespace lazy::fuzz
