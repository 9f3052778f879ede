// Where a sink comes from in models with learned positions and query biases, such as GPT-2: the effective positional
// encoding, and what the query bias adds to every score.
//
// The effective encoding EPE_i = p_i + MLP(p_i) is the first layer's output for a position alone. The query bias b_Q
// adds gamma . x_j to the score of every query on key j, gamma = W_k^T b_Q, independent of the query.
#pragma once
#include <cstdint>

#include "model/language_model.h"

namespace lazy::sinks {

// How EPE_i is computed: the MLP on p_i itself; on the norm of p_i; the whole first layer on a sequence of p_i alone.
enum class EffectivePositions { literal, normed, block };
inline constexpr EffectivePositions kEffectivePositionVariants[] = {
    EffectivePositions::literal, EffectivePositions::normed, EffectivePositions::block};
const char* name(EffectivePositions variant);

// (positions, hidden_size) fp32. Error for a model without learned positions or without an MLP.
at::Tensor effective_positions(LanguageModel& model, EffectivePositions variant);
at::Tensor position_vectors(LanguageModel& model);  // p, the same shape

// Error unless queries have a bias and are neither rotated nor normalized: otherwise the term depends on the query's
// position or norm.
void require_query_bias(const LanguageModel& model);

// gamma of every query head, (heads, hidden_size) float64, not divided by the square root of the head size.
at::Tensor gamma_by_head(const LanguageModel& model, int64_t layer);

// Delta_j = gamma . x_j for the input of a layer's attention, (..., hidden_size) -> (..., heads) float64.
at::Tensor delta_by_head(const LanguageModel& model, int64_t layer, const at::Tensor& input);

// cos(b_Q, W_k v) over all heads at once, for rows v (n, hidden_size): (n) float64.
at::Tensor alignment(const LanguageModel& model, int64_t layer, const at::Tensor& rows);

}  // namespace lazy::sinks
