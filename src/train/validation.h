// Measurements on the validation split: loss, and statistics of the attention heads.
#pragma once
#include <cstdint>
#include <optional>

#include "data/sequences.h"
#include "model/language_model.h"
#include "train/metrics.h"

namespace lazy::train {

// Mean cross-entropy in nats a token over `batches` batches (fewer if the split is smaller). The sequences are spread
// evenly over the split, because the beginning of a text is not representative, and are always the same. Empty when
// `stops` and a stop signal arrived.
std::optional<double> validation_loss(LanguageModel& model, const Sequences& sequences, int64_t length,
                                      int64_t batch_size, int64_t batches, bool stops = true);

// nats a token -> bits a byte of the source text: loss / ln 2 / (bytes a token).
double bits_per_byte(double nats_per_token, double bytes_per_token);

// Statistics over one batch, spread like validation_loss's: attention/sink_ratio, attention/density,
// attention/released_mass, attention/alive_fraction (means over sequences, layers, heads and queries;
// docs/run-directory.md) and, for models with offsets, attention/tau_mean; then the same of each layer,
// attention/layer_00/sink_ratio, ...
Scalars attention_statistics(LanguageModel& model, const Sequences& sequences, int64_t length, int64_t batch_size);

}  // namespace lazy::train
