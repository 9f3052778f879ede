// The identity of a run: the configuration completed by the corpus, the settings that a resumed run compares, and the
// facts in run.json and the log.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "train/config.h"
#include "train/metrics.h"

namespace lazy::train {

// Completes [model] from the corpus: vocabulary size, BOS and EOS. Error when the corpus has ids without an embedding.
TrainConfig with_corpus(TrainConfig config, const Sequences& sequences, const Tokenizer& tokenizer);

// The settings that determine a run's numbers, by key ("optimizer.lr", "model.hidden_size", ...).
nlohmann::ordered_json run_settings(const TrainConfig& config, const Sequences& sequences);
// Compares a checkpoint's settings with the present ones: another model or corpus is an Error; any other difference (a
// longer run, another learning rate) is logged.
void compare_settings(const nlohmann::ordered_json& checkpoint, const nlohmann::ordered_json& now,
                      const std::string& file);

// For each corpus: its size, its weight, and its share and epochs among the first `position` sequences of the stream.
nlohmann::ordered_json corpus_facts(const Sequences& sequences, int64_t position);
// The same as scalars of the log: data/epochs, or of a mixture data/epochs/NAME and data/share/NAME.
Scalars data_progress(const Sequences& sequences, int64_t position);

// The content of run.json.
nlohmann::ordered_json run_facts(const TrainConfig& config, const Sequences& sequences, const Tokenizer& tokenizer);

}  // namespace lazy::train
