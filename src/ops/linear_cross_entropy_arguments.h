// Checks of linear_cross_entropy's arguments, without looking at data, and the types of its results, for every device.
#pragma once
#include "ops/fused.h"

namespace lazy::ops {

// loss, log_prob, correct; and then d_hidden, d_weight
using CrossEntropyOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using CrossEntropyGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  row_type("linear_cross_entropy", hidden);
  LAZY_CHECK("linear_cross_entropy", hidden.dim() == 2 && weight.dim() == 2 && weight.sym_size(1) == hidden.sym_size(1),
             "hidden (tokens, dim) and weight (vocab, dim), received ", hidden.sym_sizes(), " and ",
             weight.sym_sizes());
  LAZY_CHECK("linear_cross_entropy", weight.scalar_type() == hidden.scalar_type(), "weight of hidden's type, ",
             hidden.scalar_type(), ", received ", weight.scalar_type());
  LAZY_CHECK("linear_cross_entropy",
             labels.dim() == 1 && labels.sym_size(0) == hidden.sym_size(0) && labels.scalar_type() == at::kLong,
             "labels (tokens) of int64, received ", labels.sym_sizes(), " of ", labels.scalar_type());
  check_device("linear_cross_entropy", "weight", weight, hidden);
  check_device("linear_cross_entropy", "labels", labels, hidden);
}

// Gradients of float16 are kept in float32 until the loss' own gradient multiplies them: a mean over many tokens makes
// them too small for float16, and a scaled loss' gradient is too large for it.
inline at::ScalarType kept_gradient_type(const at::Tensor& input) {
  return input.scalar_type() == at::kHalf ? at::kFloat : input.scalar_type();
}

// lazy::linear_cross_entropy_and_gradients of the tensors' device.
CrossEntropyGradients linear_cross_entropy_and_gradients(const at::Tensor& hidden, const at::Tensor& weight,
                                                         const at::Tensor& labels, int64_t ignore_index,
                                                         bool want_hidden, bool want_weight);
// Without gradients, from the operator above.
CrossEntropyOutputs linear_cross_entropy_alone(const at::Tensor& hidden, const at::Tensor& weight,
                                               const at::Tensor& labels, int64_t ignore_index);

}  // namespace lazy::ops
