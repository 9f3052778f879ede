// The two tokenizers without merges: raw bytes, and whole words from a list.
#pragma once
#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace lazy {

// Ids 0..255 are the bytes of the text, 256 is BOS and 257 is EOS.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// Reads a vocab.txt as used by Transformer-XL: one word per line; the 0-based line number is the id. Words are
// separated by white space, a line end is encoded as <eos>, and unknown words as <unk> (or <UNK>). The list must
// contain both tokens. Text after a word on the same line, such as a count, is ignored. Errors contain the file and the
// line.
std::unique_ptr<Tokenizer> load_words_tokenizer(const std::filesystem::path& path);

}  // namespace lazy
