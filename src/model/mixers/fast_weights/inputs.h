// FastWeights as the flat list that an autograd node takes.
#pragma once
#include <cstdint>

#include "model/mixers/fast_weights/fast_weights.h"

namespace lazy::fast_weights {

// What is there: the node's list has no undefined tensors.
struct Layout {
  size_t layers;
  bool norm, bias, momentum, tanh, rounded, last_state;
};

Layout layout_of(const FastWeights& in);
// Every tensor that `layout` says is there, in the order of flatten().
std::vector<at::Tensor*> places(FastWeights& in, const Layout& layout);
std::vector<at::Tensor> flatten(const FastWeights& in);
FastWeights unflatten(const std::vector<at::Tensor>& list, const Layout& layout);  // of the list's beginning

}  // namespace lazy::fast_weights
