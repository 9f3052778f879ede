// Replaces the softmax p of a trained model by ReLU(p + offset), without further training. This control experiment
// shows how much of the sparsity of a model with learned offsets is due to its training.
#pragma once
#include "model/language_model.h"

namespace lazy::sinks {

// Returns a model with the same weights that uses ReLU(p + tau / i) in place of the softmax probability p, where i is
// the number of visible keys. The copy is on the device of the model and uses its compute dtype. Throws Error unless
// the normalizer of the model is softmax.
LanguageModel with_post_hoc_offset(const LanguageModel& model, double tau = -1);

}  // namespace lazy::sinks
