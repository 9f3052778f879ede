// tokenizer.json files that no native tokenizer reads exactly: Hugging Face's `tokenizers` in a Python process.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer_json.h"

namespace lazy {

// `reason`: why the native tokenizers do not read the file; part of the error if Python or the package is missing or
// the package refuses the file.
std::unique_ptr<Tokenizer> make_library_tokenizer(const TokenizerJson& file, const SpecialTokens& special,
                                                  const std::string& reason);

}  // namespace lazy
