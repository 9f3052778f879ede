// The text that sinks are measured on, as tokens cut into samples, and a piece of it for attention maps.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy::sinks {

struct TextSource {
  std::string name;          // file or corpus, for messages
  std::vector<int32_t> ids;  // without BOS
  std::string prose;         // text of the maps
};

TextSource text_source(const Tokenizer& tokenizer, const std::string& text, const std::string& name);
// The first `most` tokens of a split of a corpus of `lazy data prepare`, in corpus order. Error when the corpus was
// made with another tokenizer.
TextSource corpus_source(const Tokenizer& tokenizer, const std::string& corpus, const std::string& split,
                         int64_t most = int64_t{1} << 22);

// The first paragraph that reads like prose; without one, the text's beginning.
std::string first_prose(const std::string& text);

// Samples of `length` tokens spread evenly over `ids`, without overlap, at most `most`.
std::vector<std::vector<int64_t>> spread_samples(const std::vector<int32_t>& ids, int64_t length, int64_t most,
                                                 std::optional<int32_t> bos);

}  // namespace lazy::sinks
