// Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): only the inputs of a function are saved, and its
// activations are recomputed in the backward pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/blocks/norm.h"

namespace lazy {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Returns function(inputs) with the same gradients as without checkpointing; inputs may be undefined tensors. Leaf
// tensors captured by the function receive gradients too. The autograd graph owns the function; objects that the
// function references must outlive the backward pass.
std::vector<at::Tensor> checkpoint_activations(const std::vector<at::Tensor>& inputs, TensorFunction function);

// Like checkpoint_activations, but keeps the activations if the forward pass has an ActivationBudget
// (activation_budget.h) with enough memory left. Outputs and gradients are bitwise equal in both cases.
std::vector<at::Tensor> keep_or_checkpoint(const std::vector<at::Tensor>& inputs, TensorFunction function);

// Frees the memory of the tensors `made` until the backward pass of `outputs`, which first calls make(inputs) again and
// stores the results in the freed tensors. Requires that made = make(inputs) and that `outputs` were computed from
// `made`. The caller must use the returned tensors instead of `outputs` and must not read `made` afterwards. Inputs and
// outputs may be undefined. A tensor of `made` that shares its storage with an input or an output is not freed. The
// autograd graph owns `make`; objects that `make` references must outlive the backward pass.
std::vector<at::Tensor> recompute_before_backward(const std::vector<at::Tensor>& made,
                                                  const std::vector<at::Tensor>& inputs, TensorFunction make,
                                                  const std::vector<at::Tensor>& outputs);

// Applies body(stream) to the residual stream, with the same gradients as without checkpointing. The autograd graph
// owns `body`; objects that `body` references must outlive the backward pass.
ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body);

}  // namespace lazy
