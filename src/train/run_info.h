// Functions that complete the configuration of a run from its corpus, compare its settings when it resumes, and collect
// the facts for run.json and for the log.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "train/config.h"
#include "train/metrics.h"

namespace lazy::train {

// Sets the vocabulary size and the BOS and EOS ids of the model from the corpus. Throws Error if the corpus contains
// ids without an embedding.
TrainConfig with_corpus(TrainConfig config, const Sequences& sequences, const Tokenizer& tokenizer);

// Returns the settings that determine the results of a run, by key ("optimizer.lr", "model.hidden_size", ...).
nlohmann::ordered_json run_settings(const TrainConfig& config, const Sequences& sequences);
// Compares the settings of a checkpoint with the current ones. Throws Error if the model or the corpus differs. Logs a
// warning for any other difference, such as a longer run or a different learning rate.
void compare_settings(const nlohmann::ordered_json& checkpoint, const nlohmann::ordered_json& now,
                      const std::string& file);

// Returns for each corpus its size, its weight, and its share and number of epochs within the first `position`
// sequences.
nlohmann::ordered_json corpus_facts(const Sequences& sequences, int64_t position);
// Returns the scalar data/epochs for the log; for a mixture of corpora data/epochs/NAME and data/share/NAME.
Scalars data_progress(const Sequences& sequences, int64_t position);

// The content of run.json.
nlohmann::ordered_json run_facts(const TrainConfig& config, const Sequences& sequences, const Tokenizer& tokenizer);

}  // namespace lazy::train
