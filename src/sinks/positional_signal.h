// Explains the origin of the attention sink in models with learned positions and query biases, such as GPT-2.
//
// The effective positional encoding EPE_i = p_i + MLP(p_i) is the output of the first layer for the position vector p_i
// alone. The query bias b_Q adds gamma . x_j to the score of every query on key j, where gamma = W_k^T b_Q does not
// depend on the query.
#pragma once
#include <cstdint>

#include "model/language_model.h"

namespace lazy::sinks {

// Ways to compute the effective positional encoding EPE_i from the position vector p_i. literal: p_i + MLP(p_i).
// normed: p_i + MLP(norm(p_i)). block: the output of the whole first layer for a sequence that consists only of p_i.
enum class EffectivePositions { literal, normed, block };
inline constexpr EffectivePositions kEffectivePositionVariants[] = {
    EffectivePositions::literal, EffectivePositions::normed, EffectivePositions::block};
const char* name(EffectivePositions variant);

// Returns EPE_i for all positions, (positions, hidden_size) fp32. Throws Error for a model without learned positions or
// without an MLP.
at::Tensor effective_positions(LanguageModel& model, EffectivePositions variant);
// Returns the position vectors p_i, in the shape of effective_positions.
at::Tensor position_vectors(LanguageModel& model);

// Throws Error unless queries have a bias and are neither rotated by RoPE nor normalized. With RoPE or normalization,
// the term gamma . x_j would depend on the position or the norm of the query.
void require_query_bias(const LanguageModel& model);

// Returns gamma of every query head, (heads, hidden_size) float64, not divided by the square root of the head size.
at::Tensor gamma_by_head(const LanguageModel& model, int64_t layer);

// Returns Delta_j = gamma . x_j for the input of the attention of a layer: (..., hidden_size) -> (..., heads) float64.
at::Tensor delta_by_head(const LanguageModel& model, int64_t layer, const at::Tensor& input);

// Returns cos(b_Q, W_k v), computed over all heads together, for rows v of shape (n, hidden_size): (n) float64.
at::Tensor alignment(const LanguageModel& model, int64_t layer, const at::Tensor& rows);

}  // namespace lazy::sinks
