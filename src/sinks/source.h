// The text that sinks are measured on, as tokens, and a piece of it for the pictures.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy::sinks {

struct Source {
  std::string name;          // file or corpus, for messages
  std::vector<int32_t> ids;  // without BOS
  std::string prose;         // words for the maps
};

Source text_source(const Tokenizer& tokenizer, const std::string& text, const std::string& name);
// The first `most` tokens of a split of a corpus of `lazy data prepare`, in the corpus' order. Error when its tokenizer
// is another one.
Source corpus_source(const Tokenizer& tokenizer, const std::string& corpus, const std::string& split,
                     int64_t most = int64_t{1} << 22);

// The first paragraph that reads like prose; the text's own beginning if there is none.
std::string first_prose(const std::string& text);

}  // namespace lazy::sinks
