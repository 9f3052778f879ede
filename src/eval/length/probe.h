// Zero-shot probes of what a model finds in a long context, on texts that are made from a seed: something is planted at
// a depth of a context of given length, and asked for at its end.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/length/scorer.h"

namespace lazy::eval::length {

struct ProbeOptions {
  std::vector<double> depths = {0, 0.25, 0.5, 0.75,
                                1};  // of the planted thing: 0 at the beginning, 1 right before the question
  int64_t samples = 5;               // contexts a length and depth
  int64_t pairs = 8;                 // of associative recall
  uint64_t seed = 42;
  std::optional<int32_t> bos;  // first in every context
};

struct ProbeCell {
  double depth = 0;
  int64_t trials = 0, exact = 0;                // exact: every token of the answer was the likeliest
  double log_likelihood = 0;                    // of the answer, nats, mean over the trials
  std::optional<double> log_likelihood_absent;  // the same where nothing was planted
  double input_tokens = 0;                      // mean
};

// Passkey retrieval (the task of Mohtashami and Jaggi 2023, with a text of our own): see passkey_prompt.
struct PasskeyPrompt {
  std::string text, answer;
};
// Notes of plain sentences, with "The pass key is NNNNN." after the share `depth` of them, and the question at the end.
// planted = false: the same notes without it.
PasskeyPrompt passkey_prompt(int64_t sentences, double depth, uint64_t seed, bool planted = true);
// One cell a depth, with as many sentences as `length` input tokens hold. Error when the question alone does not fit.
std::vector<ProbeCell> passkey(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                               const ProbeOptions& options, const std::string& title);
int64_t passkey_shortest(const Tokenizer& tokenizer, const ProbeOptions& options);

// Associative recall of several pairs (as MQAR of Arora et al. 2023, over the model's own tokens): random tokens, among
// them the pairs "key value" in a row, and at the end every key again in another order, each to be followed by its
// value. Keys, values and the rest are different tokens, all of them words where the vocabulary has enough.
struct RecallSequence {
  Window window;                      // targets: value, key, value, ... from the first question's value on
  std::vector<size_t> value_targets;  // which of the targets are values
};
std::vector<int32_t> recall_vocabulary(const Tokenizer& tokenizer, int64_t pairs);
RecallSequence recall_sequence(const std::vector<int32_t>& vocabulary, int64_t length, int64_t pairs, double depth,
                               uint64_t seed, std::optional<int32_t> bos);
std::vector<ProbeCell> recall(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                              const ProbeOptions& options, const std::string& title);
int64_t recall_shortest(const ProbeOptions& options);

}  // namespace lazy::eval::length
