// LAMBADA at any length: items joined into streams (decision A10), every token scored, and their last words again.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/length/scorer.h"
#include "eval/tasks/question.h"

namespace lazy::eval::length {

// Context and last word of each item of task lambada_openai. Error names file, line and field.
std::vector<TextPair> load_lambada(const std::filesystem::path& data, const std::optional<double>& limit);

struct LambadaItem {
  std::vector<int32_t> ids;  // the whole passage
  size_t context = 0;        // tokens before its last word's
};
// As the standard score cuts them: the last word's tokens are those that the passage has beyond the passage without it.
std::vector<LambadaItem> tokenize_lambada(const std::vector<TextPair>& pairs, const Tokenizer& tokenizer);

// Whole items in their order, each after the separator, as many as fit into `length` input tokens. An item is never
// cut: its last word always has its whole passage before it. The separators are read and not scored.
struct LambadaStream {
  Window window;
  std::vector<size_t> starts;  // of its items, among the targets
  size_t first_item = 0;
};
std::vector<LambadaStream> lambada_streams(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                                           std::optional<int32_t> bos, int64_t length);
// The shortest length that holds the longest item.
int64_t lambada_shortest(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                         std::optional<int32_t> bos);

struct LambadaSums {                            // [item]
  std::vector<double> loss, tokens;             // nats over all its tokens
  std::vector<double> word_loss, word_correct;  // the last word: nats, and 1 when each of its tokens was the likeliest
  int64_t streams = 0, not_finite = 0;
};
LambadaSums score_lambada(const Scorer& scorer, std::span<const LambadaItem> items, std::span<const int32_t> separator,
                          std::optional<int32_t> bos, int64_t length, const std::string& title);
// The benchmark's own score: each item alone, cut from the left to max_length. loss and tokens stay empty.
LambadaSums score_lambada_standard(const Scorer& scorer, std::span<const LambadaItem> items, std::optional<int32_t> bos,
                                   int64_t max_length, const std::string& title);

}  // namespace lazy::eval::length
