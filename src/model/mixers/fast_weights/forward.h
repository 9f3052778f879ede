// Fast weights forward, with what a backward pass reads again.
#pragma once
#include "model/mixers/fast_weights/activation.h"
#include "model/mixers/fast_weights/inner_norm.h"
#include "model/mixers/fast_weights/inputs.h"

namespace lazy::fast_weights {

// Of every chunk: (C, N, ...). A layer has one of each, in its order.
struct SavedActivations {
  std::vector<at::Tensor> W, b, S;  // at the chunk's start
  std::vector<at::Tensor> u, g;     // a layer's input at k, and the gradient by its output
  std::vector<at::Tensor> z;        // its output; of the last one, without a norm: what the target lacks of it
  std::vector<at::Tensor> t, x;     // the gradient by what act() made of that, and the output at q; not of the last
};

// A list of everything that `course` holds, and back.
std::vector<at::Tensor> flatten(const SavedActivations& course);
SavedActivations unflatten_course(const std::vector<at::Tensor>& list, const Layout& layout);

FastWeightsResult forward(const FastWeights& in, const Layout& layout, SavedActivations& course);

inline Gelu gelu_of(const Layout& layout) { return {.tanh = layout.tanh}; }

}  // namespace lazy::fast_weights
