// LAMBADA at any length: items are concatenated to streams, in which every token and the last words are scored.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/score.h"
#include "eval/tasks/prompt.h"

namespace lazy::eval::length {

// Context and last word of each item of task lambada_openai. Error names file, line and field.
std::vector<TextPair> load_lambada(const std::filesystem::path& data, const std::optional<double>& limit);

struct LambadaItem {
  std::vector<int32_t> ids;  // the whole passage
  size_t context = 0;        // tokens before those of the last word
};
// As in the benchmark, the last word's tokens are those of the passage after the tokens of the passage without it.
std::vector<LambadaItem> tokenize_lambada(const std::vector<TextPair>& pairs, const Tokenizer& tokenizer);

// Whole items in order, each after the separator, as many as fit into `length` input tokens. An item is never split:
// its last word always has its whole passage as context. Separators are context and are not scored.
struct LambadaStream {
  Window window;
  std::vector<size_t> starts;  // of its items, among the targets
  size_t first_item = 0;
};
std::vector<LambadaStream> lambada_streams(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                                           std::optional<int32_t> bos, int64_t length);
// The shortest length that holds the longest item.
int64_t min_lambada_length(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                           std::optional<int32_t> bos);

struct LambadaSums {                            // [item]
  std::vector<double> loss, tokens;             // nats over all of the item's tokens
  std::vector<double> word_loss, word_correct;  // last word: nats, and 1 when each of its tokens was the most likely
  int64_t streams = 0, not_finite = 0;
};
LambadaSums score_lambada(const Scorer& scorer, std::span<const LambadaItem> items, std::span<const int32_t> separator,
                          std::optional<int32_t> bos, int64_t length, const std::string& title);
// The benchmark's own score: each item alone, truncated on the left to max_length. loss and tokens stay empty.
LambadaSums score_lambada_standard(const Scorer& scorer, std::span<const LambadaItem> items, std::optional<int32_t> bos,
                                   int64_t max_length, const std::string& title);

}  // namespace lazy::eval::length
