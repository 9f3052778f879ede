// Measurements on the validation split: loss and attention statistics.
#pragma once
#include <cstdint>
#include <optional>

#include "data/sequences.h"
#include "model/language_model.h"
#include "train/metrics.h"

namespace lazy::train {

// Returns the mean cross-entropy in nats per token over `batches` batches, or fewer if the split is smaller. Every call
// uses the same sequences. They are spread evenly over the split, because the beginning of a text is not
// representative. Returns nullopt if `stops` is set and a stop signal has arrived.
std::optional<double> validation_loss(LanguageModel& model, const Sequences& sequences, int64_t length,
                                      int64_t batch_size, int64_t batches, bool stops = true);

// Converts nats per token to bits per byte of the source text: loss / ln 2 / (bytes per token).
double bits_per_byte(double nats_per_token, double bytes_per_token);

// Returns attention statistics of one batch whose sequences are spread over the split as in validation_loss. Keys:
// attention/sink_ratio, attention/density, attention/released_mass, attention/alive_fraction (means over sequences,
// layers, heads and queries; docs/reference/run-directory.md) and, for models with offsets, attention/tau_mean. The
// values of each layer follow with the keys attention/layer_00/sink_ratio, ...
Scalars attention_statistics(LanguageModel& model, const Sequences& sequences, int64_t length, int64_t batch_size);

}  // namespace lazy::train
