// LAMBADA at arbitrary context lengths. Items are concatenated to streams of the given length. Two losses are measured:
// the loss of all tokens, and the loss of the last words.
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

// Loads the context and the last word of each item of task lambada_openai. Errors name the file, line and field.
std::vector<TextPair> load_lambada(const std::filesystem::path& data, const std::optional<double>& limit);

struct LambadaItem {
  std::vector<int32_t> ids;  // token ids of the whole passage
  size_t context = 0;        // number of tokens before the last word
};
// Tokenizes passages. If the passage without its last word has n tokens, the last word consists of all tokens of the
// whole passage after the first n. The LAMBADA benchmark uses the same rule.
std::vector<LambadaItem> tokenize_lambada(const std::vector<TextPair>& pairs, const Tokenizer& tokenizer);

// A stream consists of consecutive passages, each preceded by the separator. It has as many passages as fit into
// `length` input tokens. A passage is never split, so its last word always has the whole passage as context. Separators
// are not scored.
struct LambadaStream {
  Window window;
  std::vector<size_t> starts;  // index of the first target of each item
  size_t first_item = 0;
};
std::vector<LambadaStream> lambada_streams(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                                           std::optional<int32_t> bos, int64_t length);
// Returns the minimum stream length, in tokens, into which the longest item fits.
int64_t min_lambada_length(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                           std::optional<int32_t> bos);

struct LambadaSums {                 // each vector has one element per item
  std::vector<double> loss, tokens;  // loss in nats and number of tokens, over all tokens of the item
  // word_loss: loss of the last word in nats. word_correct: 1 if each of its tokens was the most likely token,
  // otherwise 0.
  std::vector<double> word_loss, word_correct;
  int64_t streams = 0, not_finite = 0;
};
LambadaSums score_lambada(const Scorer& scorer, std::span<const LambadaItem> items, std::span<const int32_t> separator,
                          std::optional<int32_t> bos, int64_t length, const std::string& title);
// Computes the standard score of the benchmark: each item is scored separately and truncated on the left to max_length.
// `loss` and `tokens` stay empty.
LambadaSums score_lambada_standard(const Scorer& scorer, std::span<const LambadaItem> items, std::optional<int32_t> bos,
                                   int64_t max_length, const std::string& title);

}  // namespace lazy::eval::length
