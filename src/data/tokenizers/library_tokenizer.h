// A tokenizer that runs Hugging Face's `tokenizers` in a Python process. It is used for tokenizer.json files that the
// native tokenizers do not support exactly.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer_json.h"

namespace lazy {

// `reason` explains why the native tokenizers do not support the file. It is part of the error message if Python or the
// package is missing or if the package rejects the file.
std::unique_ptr<Tokenizer> make_library_tokenizer(const TokenizerJson& file, const SpecialTokens& special,
                                                  const std::string& reason);

}  // namespace lazy
