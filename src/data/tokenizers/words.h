// Whole words from a list, the vocabulary of Transformer-XL's texts: vocab.txt, one word a line, its number from 0 the
// id.
#pragma once
#include <filesystem>
#include <memory>

#include "data/tokenizer.h"

namespace lazy {

// Words are parted by white space; a line end is <eos>, which the list must have, and a word that it has not is <unk>
// (or <UNK>). What follows a word on its line of the list, such as a count, is passed over. Error naming file and line.
std::unique_ptr<Tokenizer> load_words_tokenizer(const std::filesystem::path& path);

}  // namespace lazy
