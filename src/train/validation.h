// What a run measures beside its training loss: the loss on held-out text, and how the heads spread their attention.
#pragma once
#include <cstdint>
#include <optional>

#include "data/sequences.h"
#include "model/language_model.h"
#include "train/metrics.h"

namespace lazy::train {

// Mean cross-entropy in nats a token over `batches` batches (fewer if the split is smaller) of sequences that are
// spread evenly over the split, because a text's beginning is not like the rest of it; always the same ones. Nothing
// when a signal asked to stop and `stops`.
std::optional<double> validation_loss(LanguageModel& model, const Sequences& sequences, int64_t length,
                                      int64_t batch_size, int64_t batches, bool stops = true);

// nats a token -> bits a byte of the source text: loss / ln 2 / (bytes a token).
double bits_per_byte(double nats_per_token, double bytes_per_token);

// Attention over one batch, spread like validation_loss's: attention/sink_ratio, attention/density,
// attention/released_mass, attention/alive_fraction (means over sequences, layers, heads and queries;
// docs/run-directory.md) and, for models that have offsets, attention/tau_mean; then the same of each layer,
// attention/layer_00/sink_ratio, ...
Scalars attention_statistics(LanguageModel& model, const Sequences& sequences, int64_t length, int64_t batch_size);

}  // namespace lazy::train
