// The two tokenizers without merges: raw bytes, and whole words from a list.
#pragma once
#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace lazy {

// Ids 0..255 are the bytes of the text, 256 is BOS, 257 is EOS.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// vocab.txt of Transformer-XL: one word a line, the line number (from 0) is the id. Words are separated by white space;
// a line end is <eos>, unknown words are <unk> (or <UNK>), and the list must contain both. Text after a word on its
// line, such as a count, is ignored. Error naming file and line.
std::unique_ptr<Tokenizer> load_words_tokenizer(const std::filesystem::path& path);

}  // namespace lazy
