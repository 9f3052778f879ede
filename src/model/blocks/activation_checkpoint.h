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

// The same, but where the forward pass has an ActivationBudget (activation_budget.h) with room for them, the
// activations are kept. Every bit is the same.
std::vector<at::Tensor> keep_or_checkpoint(const std::vector<at::Tensor>& inputs, TensorFunction function);

// Frees the storage of `made`, which is make(inputs), until the backward pass of `outputs`, which is computed from it;
// there make(inputs) fills it again. So what a function between the two saved of `made` takes no memory in the
// meantime. Returns the outputs, to be used in the place of the given ones. Inputs and outputs may be undefined. `made`
// must not be read afterwards; what shares its storage with an input or an output is kept. The graph owns the function,
// as above.
std::vector<at::Tensor> recompute_before_backward(const std::vector<at::Tensor>& made,
                                                  const std::vector<at::Tensor>& inputs, TensorFunction make,
                                                  const std::vector<at::Tensor>& outputs);

// Applies body(stream) with the same gradients as without checkpointing. The graph owns `body`; objects it references
// must outlive the backward pass.
ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body);

}  // namespace lazy
