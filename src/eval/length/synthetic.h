// Synthetic retrieval tasks, zero-shot: passkey retrieval and associative recall. Something is planted at a relative
// depth of a random context of given length, and queried at its end.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/score.h"

namespace lazy::eval::length {

struct SyntheticOptions {
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};  // 0: at the beginning, 1: right before the question
  int64_t samples = 5;                                   // contexts a length and depth
  int64_t pairs = 8;                                     // of associative recall
  uint64_t seed = 42;
  std::optional<int32_t> bos;  // first token of every context
};

// The result of one task at one length and depth.
struct DepthResult {
  double depth = 0;
  int64_t trials = 0, exact = 0;                // exact: every token of the answer was the most likely one
  double log_likelihood = 0;                    // of the answer, nats, mean over the trials
  std::optional<double> log_likelihood_absent;  // the same for contexts without the planted answer
  double input_tokens = 0;                      // mean
};

// Passkey retrieval (the task of Mohtashami and Jaggi 2023 with another text).
struct PasskeyPrompt {
  std::string text, answer;
};
// Notes of plain sentences, with "The pass key is NNNNN." after the share `depth` of them, and the question at the end.
// planted = false: the same notes without it.
PasskeyPrompt passkey_prompt(int64_t sentences, double depth, uint64_t seed, bool planted = true);
// One result a depth, with as many sentences as fit into `length` input tokens. Error when the question alone does not
// fit.
std::vector<DepthResult> evaluate_passkey(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                          const SyntheticOptions& options, const std::string& title);
int64_t min_passkey_length(const Tokenizer& tokenizer, const SyntheticOptions& options);

// Associative recall of several pairs (MQAR of Arora et al. 2023 over the model's own tokens). Among random filler
// tokens stand the pairs "key value" in a row; at the end every key is repeated in another order, each followed by its
// value. Keys, values and filler are distinct tokens; they are whole words where the vocabulary has enough.
struct RecallSequence {
  Window window;                      // targets: value, key, value, ... from the first query's value on
  std::vector<size_t> value_targets;  // indices of the values among the targets
};
std::vector<int32_t> recall_vocabulary(const Tokenizer& tokenizer, int64_t pairs);
RecallSequence recall_sequence(const std::vector<int32_t>& vocabulary, int64_t length, int64_t pairs, double depth,
                               uint64_t seed, std::optional<int32_t> bos);
std::vector<DepthResult> evaluate_recall(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                         const SyntheticOptions& options, const std::string& title);
int64_t min_recall_length(const SyntheticOptions& options);

}  // namespace lazy::eval::length
