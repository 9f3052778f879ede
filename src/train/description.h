// What identifies a run: the model that the configuration and the corpus make together, and the facts written to disk.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "train/config.h"
#include "train/metrics.h"

namespace lazy::train {

// The configuration with what the corpus decides where [model] is silent: vocabulary, BOS and EOS. Error when the
// corpus has ids that the model has no embedding for.
TrainConfig with_corpus(TrainConfig config, const Sequences& sequences, const Tokenizer& tokenizer);

// What must be equal for a resumed run to be the same run, key by key ("optimizer.lr", "model.hidden_size", ...).
nlohmann::ordered_json run_settings(const TrainConfig& config, const Sequences& sequences);

// For each corpus: its size, its weight, and its share and epochs among the first `position` sequences of the stream.
nlohmann::ordered_json part_facts(const Sequences& sequences, int64_t position);
// The same as scalars of the log: data/epochs, or of a mixture data/epochs/NAME and data/share/NAME.
Scalars data_position(const Sequences& sequences, int64_t position);

// run.json: what a reader of the run wants to know.
nlohmann::ordered_json run_facts(const TrainConfig& config, const Sequences& sequences, const Tokenizer& tokenizer);

}  // namespace lazy::train
