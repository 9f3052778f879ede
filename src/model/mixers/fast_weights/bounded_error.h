// The error that a neural memory learns by: |e|^2 up to |e|^2 = dim, beyond that straight on (Huber), so that its
// gradient is at most 2 sqrt(dim) long. All steps of a chunk are taken at the weights of its start; where keys repeat,
// two layers that follow the square overshoot, and what they overshoot by grows with the square again: infinity within
// a text.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::fast_weights {

// Of rows e (..., dim): 2 e min(1, sqrt(dim) / |e|). Differentiable.
at::Tensor error_gradient(const at::Tensor& e);
// The gradient of sum(d * error_gradient(e)) by e.
at::Tensor error_gradient_backward(const at::Tensor& e, const at::Tensor& d);

}  // namespace lazy::fast_weights
