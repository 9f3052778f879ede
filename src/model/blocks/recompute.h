// A differentiable function of tensors that keeps its inputs only: the backward pass computes the rest again.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lazy {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// function(inputs), whose results have the gradients that they would have without; inputs may be undefined. Leaves that the
// function refers to get theirs too. It lives as long as the graph; what it refers to must live until the backward pass.
std::vector<at::Tensor> recompute(const std::vector<at::Tensor>& inputs, TensorFunction function);

}  // namespace lazy
