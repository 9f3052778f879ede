// The text for sink measurements, as tokens that are cut into samples, and an excerpt of it for attention maps.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy::sinks {

struct TextSource {
  std::string name;          // file or corpus name, for messages
  std::vector<int32_t> ids;  // token ids of the text, without BOS
  std::string prose;         // text for the attention maps
};

TextSource text_source(const Tokenizer& tokenizer, const std::string& text, const std::string& name);
// Reads the first `most` tokens of a split of a corpus from `lazy data prepare`, in corpus order. Throws Error if the
// corpus was prepared with a different tokenizer.
TextSource corpus_source(const Tokenizer& tokenizer, const std::string& corpus, const std::string& split,
                         int64_t most = int64_t{1} << 22);

// Returns the first paragraph that looks like prose, or the beginning of the text if there is none.
std::string first_prose(const std::string& text);

// Returns at most `most` samples of `length` tokens that are spread evenly over `ids` without overlap.
std::vector<std::vector<int64_t>> spread_samples(const std::vector<int32_t>& ids, int64_t length, int64_t most,
                                                 std::optional<int32_t> bos);

}  // namespace lazy::sinks
