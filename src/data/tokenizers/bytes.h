// The tokenizer without a vocabulary: ids 0..255 are the bytes of the text, 256 is BOS and 257 is EOS.
#pragma once
#include <memory>

#include "data/tokenizer.h"

namespace lazy {

std::unique_ptr<Tokenizer> make_bytes_tokenizer();

}  // namespace lazy
