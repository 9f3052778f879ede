// What a query bias does to attention: b_Q adds gamma . x_j to the score of every query on key j, gamma = W_k^T b_Q,
// whatever the query. That is how a sink is made in models with learned positions and query biases (the GPT-2 study,
// SPEC section 6.1).
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/language_model.h"

namespace lazy::sinks {

// Error unless queries have a bias and are neither rotated nor normalized: elsewhere the term depends on the query's
// place or size.
void require_query_bias(const LanguageModel& model);

// gamma of every query head, (heads, hidden_size) float64, undivided by the square root of the head size. Summed over
// heads it is the study's.
at::Tensor gamma_by_head(const LanguageModel& model, int64_t layer);

// Delta_j = gamma . x_j for what a layer's attention reads, (..., hidden_size) -> (..., heads) float64.
at::Tensor delta_by_head(const LanguageModel& model, int64_t layer, const at::Tensor& input);

// cos(b_Q, W_k v) over all heads at once, for rows v (n, hidden_size): (n) float64.
at::Tensor alignment(const LanguageModel& model, int64_t layer, const at::Tensor& rows);

}  // namespace lazy::sinks
