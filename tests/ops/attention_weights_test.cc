// Tests the attention weights that are computed as a tensor by ATen operations. For every normalizer, they are compared
// with the float64 definition of the kernels.
#include "ops/attention_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/normalizers.h"

namespace lazy::ops {

namespace {

AttentionTerms terms_of(const NormalizerTraits& normalizer) {
  AttentionTerms terms;
  terms.options.normalizer = normalizer.name;
  terms.options.alibi_slopes = at::full({4}, 0.1, at::kDouble);
  terms.options.window = 7;
  terms.options.softcap = 1.5;
  terms.distance_bias = at::randn({4, 5}, at::kDouble);
  if (normalizer.takes_tau) terms.tau = at::full({4}, -0.9, at::kDouble);
  if (normalizer.takes_sink) terms.options.sink = at::randn({4}, at::kDouble);
  return terms;
}

TEST(AttentionWeights, Weights_MatchFloat64Definition) {
  at::manual_seed(5);
  const at::Tensor q = at::randn({2, 12, 4, 16}, at::kDouble), k = at::randn({2, 12, 2, 16}, at::kDouble);
  for (const NormalizerTraits& normalizer : kNormalizers) {
    const AttentionTerms terms = terms_of(normalizer);
    const at::Tensor scores = attention_scores(q, k, terms), weights = normalized_weights(scores, terms);
    EXPECT_TRUE(at::allclose(weights, reference_weights(q, k, terms), 1e-11, 1e-13)) << normalizer.name;
    if (normalizer.family == NormalizerFamily::threshold) continue;  // block_weights does not support this family
    const at::Tensor visible = scores[0][0].isneginf().logical_not();
    EXPECT_TRUE(at::allclose(
        weights, block_weights(scores, visible, visible.sum(1, true).to(at::kDouble), terms.tau, terms.options), 1e-11,
        1e-13))
        << normalizer.name;
  }
}

TEST(AttentionWeights, Statistics_MatchOperator) {
  at::manual_seed(6);
  const at::Tensor q = at::randn({1, 9, 4, 16}, at::kDouble), k = at::randn({1, 9, 4, 16}, at::kDouble);
  for (const NormalizerTraits& normalizer : kNormalizers) {
    AttentionTerms terms = terms_of(normalizer);
    terms.options.return_stats = true;
    const at::Tensor stats =
        std::get<2>(attention(q, k, k, terms.distance_bias, terms.tau, terms.options)).to(at::kFloat);
    EXPECT_TRUE(at::allclose(weight_statistics(reference_weights(q, k, terms)), stats, 1e-5, 1e-6)) << normalizer.name;
  }
}

TEST(AttentionWeights, UnknownNormalizer_Throws) {
  AttentionTerms terms;
  terms.options.normalizer = "soft";
  EXPECT_THROW(normalized_weights(at::zeros({1, 1, 2, 2}), terms), c10::Error);
}

}  // namespace

}  // namespace lazy::ops
