// Whether a tokenizer is the one that a model was trained with.
#pragma once
#include <cstdint>
#include <string>

#include "model/config.h"

namespace lazy {

// Error naming `source` (a model folder or a corpus) when the tokenizer has more tokens than the model's vocabulary, or
// is not the one whose fingerprint config.json recorded (0: none was). Fewer tokens than the vocabulary are normal:
// embeddings are often padded.
void check_tokenizer(const ModelConfig& config, uint64_t fingerprint, int64_t vocab_size, const std::string& source);

}  // namespace lazy
