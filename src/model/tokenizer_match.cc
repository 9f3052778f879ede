#include "model/tokenizer_match.h"

#include "core/error.h"

namespace lazy {

void check_tokenizer(const ModelConfig& config, uint64_t fingerprint, int64_t vocab_size, const std::string& source) {
  if (vocab_size > config.vocab_size) {
    fail("tokenizer", "{}: does not match the model: expected at most {} tokens (vocab_size in config.json), found {}",
         source, config.vocab_size, vocab_size);
  }
  if (config.tokenizer_fingerprint != 0 && config.tokenizer_fingerprint != fingerprint) {
    fail("tokenizer", "{}: does not match the model: expected fingerprint {:016x} (config.json), found {:016x}", source,
         config.tokenizer_fingerprint, fingerprint);
  }
}

}  // namespace lazy
