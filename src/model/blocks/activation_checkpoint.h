// Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): saves only the inputs of a part of the model and
// recomputes its activations in the backward pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/blocks/norm.h"

namespace lazy {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Returns function(inputs) with the same gradients as without checkpointing; inputs may be undefined. Leaves captured
// by the function receive gradients too. The graph owns the function; objects it references must outlive the backward
// pass.
std::vector<at::Tensor> checkpoint_activations(const std::vector<at::Tensor>& inputs, TensorFunction function);

// Applies body(stream) with the same gradients as without checkpointing. The graph owns `body`; objects it references
// must outlive the backward pass.
ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body);

}  // namespace lazy
