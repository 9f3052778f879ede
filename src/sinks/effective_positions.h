// The effective positional encoding EPE_i = p_i + MLP(p_i) of models with learned positions, such as GPT-2: what the
// MLP of the first layer adds to the position vector p_i alone.
#pragma once
#include "model/language_model.h"

namespace lazy::sinks {

// Returns EPE_i for all positions, (positions, hidden_size) fp32. Throws Error for a model without learned positions or
// without an MLP.
at::Tensor effective_positions(LanguageModel& model);

}  // namespace lazy::sinks
