// A trained softmax model whose weights pass through another offset without further training: the control that says
// what of a learned sparsity training has to do with.
#pragma once
#include "model/language_model.h"

namespace lazy::sinks {

// The same weights with ReLU(p + tau / i) in place of softmax's p; i is the number of visible keys. The copy is on the
// model's device, in its computing precision. Error unless the model's normalizer is softmax.
LanguageModel with_post_hoc_offset(const LanguageModel& model, double tau = -1);

}  // namespace lazy::sinks
