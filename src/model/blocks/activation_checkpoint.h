// Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): a part of a model saves only its inputs and computes
// the rest again in the backward pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/blocks/norm.h"

namespace lazy {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// function(inputs), whose results have the gradients that they would have without; inputs may be undefined. Leaves that
// the function refers to get theirs too. It lives as long as the graph; what it refers to must live until the backward
// pass.
std::vector<at::Tensor> checkpoint_activations(const std::vector<at::Tensor>& inputs, TensorFunction function);

// body(stream), whose results have the gradients that they would have without. `body` lives as long as the graph; what
// it refers to must live until the backward pass.
ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body);

}  // namespace lazy
