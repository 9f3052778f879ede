// What `lazy repro evidence` measures on a trained model. Every function takes a loaded model and gives a part of the
// record; numbers have six digits. language_measures.cc: losses; sink_measures.cc: attention, hidden states, learned
// parameters; measures.cc: all of them, in the order of the record.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "model/language_model.h"
#include "repro/evidence/protocol.h"
#include "repro/measure.h"
#include "repro/plan.h"

namespace lazy::repro {

struct EvidenceInputs {
  std::filesystem::path model, corpus, data;  // a model folder, the corpus, the benchmarks' files
  SequenceOptions sequences;                  // as in training: separators, BOS, length
  std::string device = "cpu";
  bool progress = true;
};

// The whole "measures" of a record.
Json measure_model(const EvidenceInputs& inputs, const EvidenceSizes& sizes);
// Sinks and held-out loss of a model within training.
Json measure_snapshot(const EvidenceInputs& inputs, const EvidenceSizes& sizes);

// Parts.

// {"loss", "tokens", "sequences", "whole_split", "by_group"}: sequences of the validation split as training has them.
Json heldout_measures(LanguageModel& model, const EvidenceInputs& inputs, int64_t most_tokens);
// {"bos_every_window": {...}, "no_bos": {...}} of WikiText's pages and of LAMBADA's passages. no_bos: BOS stands only
// where lm-evaluation-harness predicts a page's first token from it; a passage of LAMBADA has none, and its first token
// is not scored, with BOS neither.
Json wikitext_measures(LanguageModel& model, const Tokenizer& tokenizer, const EvidenceInputs& inputs);
Json lambada_measures(LanguageModel& model, const Tokenizer& tokenizer, const EvidenceInputs& inputs);

// {LENGTH: {"loss", "positions", "by_position", "by_group"}} of the windows that length_windows gives. by_position:
// means over the positions from positions[n] to positions[n + 1] - 1.
Json length_measures(LanguageModel& model, const Stretches& stretches, const std::vector<int64_t>& lengths,
                     std::optional<int32_t> bos, bool progress);

// {T: {"bos": {...}, "no_bos": {...}}}: means over samples, layers, heads and queries, and every head's. "uniform":
// what uniform rows give, 0 for an offset tau / i; "uniform_at_offsets": with the offsets as they are learned.
Json sink_measures(LanguageModel& model, const std::vector<int32_t>& ids, std::optional<int32_t> bos,
                   const std::vector<int64_t>& lengths, int64_t tokens);
// {"sink_ratio", ...} of samples of one length.
Json sink_measures_of(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples);
// Activations and the weights of every key in one pass. Singular values take most of its time: none for 0.
Json probe_measures(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples, int64_t collapse_samples);
// {"tau", "distance_bias"} of a model folder. Biases in ranges of distances, with their gauge: scores are free up to a
// constant over a row's keys, so that a bias is known up to one. Where the window is shorter than the context, the
// keys beyond it have bias 0 and fix it; else the mean over the window is subtracted.
Json learned_measures(const std::filesystem::path& model);

// Helpers.
Json rounded(double value);  // six digits; null unless finite
Json rounded(const std::vector<double>& values);
Json rounded(const std::vector<std::vector<double>>& values);

}  // namespace lazy::repro
