// Synthetic zero-shot retrieval tasks: passkey retrieval and associative recall. A fact is inserted at a relative depth
// of a random context of given length and queried at the end of the context.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/score.h"

namespace lazy::eval::length {

struct SyntheticOptions {
  // relative depth; 0: at the beginning, 1: directly before the question
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  int64_t samples = 5;  // number of contexts per length and depth
  int64_t pairs = 8;    // number of key-value pairs in associative recall
  uint64_t seed = 42;
  std::optional<int32_t> bos;  // if set, the first token of every context
};

// Result of one task at one length and depth.
struct DepthResult {
  double depth = 0;
  int64_t trials = 0, exact = 0;  // exact: number of trials in which every token of the answer was the most likely one
  double log_likelihood = 0;      // log-likelihood of the answer in nats, mean over the trials
  std::optional<double> log_likelihood_absent;  // log-likelihood for contexts that do not contain the answer
  double input_tokens = 0;                      // number of input tokens, mean over the trials
};

// Passkey retrieval (the task of Mohtashami and Jaggi 2023 with a different text).
struct PasskeyPrompt {
  std::string text, answer;
};
// Returns a prompt of plain sentences. "The pass key is NNNNN." is inserted after the fraction `depth` of the
// sentences, and the question is at the end. With planted = false, the pass key is omitted.
PasskeyPrompt passkey_prompt(int64_t sentences, double depth, uint64_t seed, bool planted = true);
// Returns one result per depth. The prompt has as many sentences as fit into `length` input tokens. Throws Error if the
// question alone does not fit.
std::vector<DepthResult> evaluate_passkey(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                          const SyntheticOptions& options, const std::string& title);
int64_t min_passkey_length(const Tokenizer& tokenizer, const SyntheticOptions& options);

// Associative recall of several pairs (MQAR of Arora et al. 2023, using tokens of the model). The context contains
// random filler tokens and, at the given depth, consecutive pairs "key value". At the end every key is repeated in a
// different order, each followed by its value. Keys, values and filler are distinct tokens. They are whole words if the
// vocabulary contains enough of them.
struct RecallSequence {
  Window window;                      // targets: value, key, value, ... starting at the value of the first query
  std::vector<size_t> value_targets;  // indices of the values in window.targets
};
std::vector<int32_t> recall_vocabulary(const Tokenizer& tokenizer, int64_t pairs);
RecallSequence recall_sequence(const std::vector<int32_t>& vocabulary, int64_t length, int64_t pairs, double depth,
                               uint64_t seed, std::optional<int32_t> bos);
std::vector<DepthResult> evaluate_recall(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                         const SyntheticOptions& options, const std::string& title);
int64_t min_recall_length(const SyntheticOptions& options);

}  // namespace lazy::eval::length
