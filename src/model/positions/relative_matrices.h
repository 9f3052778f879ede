// Attention with Transformer-XL's positions by its definition, with scores and weights as tensors: for probes. What
// relative_attention computes a strip at a time.
#pragma once
#include "model/positions/transformer_xl.h"

namespace lazy {

// (batch, heads, queries, keys) of all keys in `in`, -inf where a query does not see one: later ones, and those that
// its segment does not remember or its window has left behind. fp32 (fp64 of fp64 inputs).
at::Tensor relative_scores(const RelativeInputs& in);

// The mean of v by such weights, (batch, queries, heads, head_dim) in v's precision.
at::Tensor relative_values(const at::Tensor& weights, const RelativeInputs& in);

}  // namespace lazy
