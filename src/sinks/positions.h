// The effective positional encoding of models with learned positions: what the first layer's MLP makes of a position
// alone.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/language_model.h"

namespace lazy::sinks {

// How EPE_i = p_i + MLP(p_i) of the first layer is read (SPEC section 6.1): the MLP on p_i as it stands; on the norm of
// p_i; or the whole first layer on a sequence of p_i alone.
enum class EffectivePositions { literal, normed, block };
inline constexpr EffectivePositions kEveryReading[] = {EffectivePositions::literal, EffectivePositions::normed,
                                                       EffectivePositions::block};
const char* name(EffectivePositions variant);

// (positions, hidden_size) fp32. Error where the model has no learned positions or no MLP.
at::Tensor effective_positions(LanguageModel& model, EffectivePositions variant);
at::Tensor position_vectors(LanguageModel& model);  // p, the same shape

}  // namespace lazy::sinks
