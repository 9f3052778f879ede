// The gradients of fast weights, through the gradients that they took.
#pragma once
#include "model/mixers/fast_weights/forward.h"

namespace lazy::fast_weights {

// By everything in `in`, as a FastWeights of gradients. d: by the results, all defined.
FastWeights backward(const FastWeights& in, const Layout& layout, const SavedActivations& course,
                     const FastWeightsResult& d);

}  // namespace lazy::fast_weights
