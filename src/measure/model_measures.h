// The measurements of `lazy measure model`, which the records of trainings in docs/results/records contain. Every
// function receives a loaded model and returns a part of the record; numbers have six significant digits.
// language_measures.cc measures losses. sink_measures.cc measures attention, hidden states and learned parameters.
// model_measures.cc runs all measurements in the order of the record.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "measure/sizes.h"
#include "measure/texts.h"
#include "model/language_model.h"

namespace lazy::measure {

using Json = nlohmann::ordered_json;

struct ModelInputs {
  std::filesystem::path model, corpus, data;  // the model folder, the corpus, the benchmark files
  SequenceOptions sequences;                  // separators, BOS and length of the training sequences
  std::string device = "cpu";
  bool progress = true;
};

// Names of the parts (groups of measurements). kRecordParts: the parts of a record, in the order in which they are
// measured. kModelParts: all parts that measure_model can measure.
extern const std::vector<std::string> kRecordParts, kModelParts;
// Returns the "measures" object of a record with the given parts.
Json measure_model(const ModelInputs& inputs, const MeasureSizes& sizes,
                   const std::vector<std::string>& parts = kRecordParts);

// Each of the following functions returns one part of a record.

// Returns {"loss", "tokens", "sequences", "whole_split", "by_group"} over sequences of the validation split, which are
// built in the same way as in training.
Json heldout_measures(LanguageModel& model, const ModelInputs& inputs, int64_t most_tokens);
// Returns {"bos_every_window": {...}, "no_bos": {...}} for the pages of WikiText and the passages of LAMBADA. For
// WikiText, no_bos uses BOS only as the context of the first token of a page, as in lm-evaluation-harness. The first
// token of a LAMBADA passage would have no context without BOS. Therefore this token is scored in neither of the two
// cases.
Json wikitext_measures(LanguageModel& model, const Tokenizer& tokenizer, const ModelInputs& inputs);
Json lambada_measures(LanguageModel& model, const Tokenizer& tokenizer, const ModelInputs& inputs);

// Returns {LENGTH: {"loss", "positions", "by_position", "by_group"}} for the windows that length_windows returns.
// by_position[n] is the mean loss over the positions from positions[n] to positions[n + 1] - 1.
Json length_measures(LanguageModel& model, const Stretches& stretches, const std::vector<int64_t>& lengths,
                     std::optional<int32_t> bos, bool progress);

// Returns {T: {"bos": {...}, "no_bos": {...}}} with means over samples, layers, heads and queries, and the values of
// every head. "uniform" is the sink ratio of attention rows with equal scores; for an offset tau / i it is 0, the value
// at tau = -1. "uniform_at_offsets" is the sink ratio of such rows with the learned offsets (see sinks/uniform.h).
Json sink_measures(LanguageModel& model, const std::vector<int32_t>& ids, std::optional<int32_t> bos,
                   const std::vector<int64_t>& lengths, int64_t tokens);
// Returns {"sink_ratio", ...} for samples of equal length.
Json sink_measures_of(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples);
// Measures activations and the attention weights of every key in one pass. Most of the time is spent on the singular
// values of `collapse_samples` samples, which measure the collapse of hidden states; 0 omits them.
Json probe_measures(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples, int64_t collapse_samples);
// Returns {LENGTH: {"cosine", "effective_rank"}}: the mean pairwise cosine similarity and the effective rank of the
// output hidden states over the first LENGTH tokens of at most 16 stretches.
Json collapse_by_length(LanguageModel& model, const Stretches& stretches, const std::vector<int64_t>& lengths,
                        int32_t bos);
// Returns {"tau", "distance_bias", "alibi_slopes"} of a model folder, with biases averaged over ranges of distances.
// Softmax does not change when a constant is added to all scores of a row, so a bias is determined only up to a
// constant. If the window is shorter than the context, keys outside the window have bias 0, which fixes the constant.
// Otherwise the mean over the window is subtracted.
Json learned_measures(const std::filesystem::path& model);

// Helpers.
Json rounded(double value);  // returns the value rounded to six significant digits, or null if it is not finite
Json rounded(const std::vector<double>& values);
Json rounded(const std::vector<std::vector<double>>& values);

}  // namespace lazy::measure
