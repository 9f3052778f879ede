#include "ops/attention_weights.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "lazy/normalizers.h"

namespace lazy::ops {
namespace {

// Reshapes `values`, one number per head, so that it broadcasts with (batch, heads, queries, keys).
at::Tensor by_heads(const at::Tensor& values, const at::Tensor& like) {
  return values.to(like.options()).view({1, -1, 1, 1});
}

at::Tensor to_heads(const at::Tensor& x, int64_t heads) {
  const at::Tensor y = x.transpose(1, 2);
  return y.size(1) == heads ? y : y.repeat_interleave(heads / y.size(1), 1);
}

// Sparsemax (Martins and Astudillo 2016). With the scores in descending order, the support consists of the first
// scores, up to the last one that satisfies the support condition. The threshold is computed from the support.
at::Tensor sparsemax(const at::Tensor& s) {
  const at::Tensor sorted = std::get<0>(s.sort(-1, /*descending=*/true)), sums = sorted.cumsum(-1) - 1;
  const at::Tensor rank = at::arange(1, s.size(-1) + 1, s.options());
  const at::Tensor support = sorted.mul(rank).gt(sums).sum(-1, true);
  return at::relu(s - sums.gather(-1, support - 1) / support);
}

// Exact 1.5-entmax by sorting (Peters, Niculae and Martins 2019). The scores are shifted so that the largest one is 0,
// and then halved; values below -1 have zero weight.
at::Tensor entmax15(const at::Tensor& s) {
  const at::Tensor x = ((s - s.amax(-1, true)) / 2).clamp_min(-2), sorted = std::get<0>(x.sort(-1, true));
  const at::Tensor rank = at::arange(1, s.size(-1) + 1, s.options());
  const at::Tensor mean = sorted.cumsum(-1) / rank, square = sorted.square().cumsum(-1) / rank;
  const at::Tensor threshold = mean - ((1 - rank * (square - mean.square())) / rank).clamp_min(0).sqrt();
  const at::Tensor support = threshold.le(sorted).sum(-1, true);
  return at::relu(x - threshold.gather(-1, support - 1)).square();
}

// Returns the weights of softpick (arXiv 2504.20966), as defined in attention/reference/normalizers.cc. The sum and the
// largest score include only visible keys.
at::Tensor softpick(const at::Tensor& s) {
  const at::Tensor m = s.amax(-1, true).clamp_min(0).detach();
  const at::Tensor excess = ((s - m).exp() - (-m).exp()).masked_fill(s.isneginf(), 0);
  return at::relu(excess) / (excess.abs().sum(-1, true) + kernels::kSoftpickEpsilon);
}

kernels::Normalizer normalizer_of(const AttentionOptions& options) {
  const auto found = kernels::normalizer_from_name(options.normalizer);
  TORCH_CHECK(found, "attention: normalizer '", options.normalizer, "' is unknown");
  return *found;
}

// Returns the softmax over the last axis of scores (batch, heads, queries, keys). For a normalizer with a sink, the
// sink is one more score, whose probability is not returned.
at::Tensor probabilities(const at::Tensor& s, const AttentionOptions& options) {
  if (!kernels::traits(normalizer_of(options)).takes_sink) return at::softmax(s, 3);
  const at::Tensor sink = by_heads(options.sink, s).expand({s.size(0), -1, s.size(2), 1});
  return at::softmax(at::cat({s, sink}, 3), 3).narrow(3, 0, s.size(3));
}

}  // namespace

at::Tensor reference_weights(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms) {
  const at::NoGradGuard no_grad;
  const auto exact = [](const at::Tensor& t) { return t.defined() ? t.detach().to(at::kCPU, at::kDouble) : t; };
  AttentionOptions options = terms.options;
  options.return_stats = options.return_score_stats = false;
  options.sink = exact(options.sink);
  options.alibi_slopes = exact(options.alibi_slopes);
  // With the identity matrix as values, the output of query i is its row of weights.
  const int64_t keys = k.size(1);
  const at::Tensor identity =
      at::eye(keys, at::kDouble).view({1, keys, 1, keys}).expand({k.size(0), keys, k.size(2), keys});
  return std::get<0>(attention(exact(q), exact(k), identity, exact(terms.distance_bias), exact(terms.tau), options))
      .transpose(1, 2);
}

at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms, int64_t first) {
  const at::ScalarType type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t queries = q.size(1), keys = k.size(1);
  const double scale = terms.options.scale.value_or(1 / std::sqrt(double(q.size(3))));
  at::Tensor s = at::matmul(q.to(type).transpose(1, 2), to_heads(k.to(type), q.size(2)).transpose(2, 3)) * scale;
  s = soft_capped(s, terms.options);
  const auto places = q.options().dtype(at::kLong);
  const at::Tensor distance = at::arange(first, first + queries, places).unsqueeze(1) - at::arange(keys, places);
  if (terms.distance_bias.defined()) {
    const int64_t window = terms.distance_bias.size(1);
    const at::Tensor bias =
        terms.distance_bias.to(type).index_select(1, distance.abs().clamp_max(window - 1).reshape({-1}));
    s = s + bias.view({-1, queries, keys}) * distance.abs().lt(window);
  }
  if (terms.options.alibi_slopes.defined()) s = s - by_heads(terms.options.alibi_slopes, s) * distance.abs();
  at::Tensor hidden = distance.lt(0);
  if (terms.options.window > 0) hidden = hidden.logical_or(distance.ge(terms.options.window));
  return s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

at::Tensor soft_capped(const at::Tensor& s, const AttentionOptions& options) {
  const double softcap = options.softcap.value_or(0);
  return softcap > 0 ? softcap * at::tanh(s / softcap) : s;
}

at::Tensor normalized_weights(const at::Tensor& scores, const AttentionTerms& terms) {
  using kernels::Normalizer;
  const Normalizer normalizer = normalizer_of(terms.options);
  switch (normalizer) {
    case Normalizer::softmax:
    case Normalizer::softmax_sink:
      return probabilities(scores, terms.options);
    case Normalizer::sparsemax:
      return sparsemax(scores);
    case Normalizer::entmax15:
      return entmax15(scores);
    case Normalizer::softpick:
      return softpick(scores);
    case Normalizer::elastic:
    case Normalizer::elastic_sink:
    case Normalizer::sigmoid: {
      const at::Tensor visible = scores.isneginf().logical_not(), count = visible.sum(-1, true);
      if (normalizer == Normalizer::sigmoid) {
        const auto given = terms.options.sigmoid_bias;
        return at::sigmoid(
            scores + (given ? at::full_like(count, *given, scores.options()) : -count.to(scores.scalar_type()).log()));
      }
      const at::Tensor tau = by_heads(terms.tau, scores);
      const at::Tensor offset = terms.options.offset == "constant" ? tau : tau / count;
      return at::relu(probabilities(scores, terms.options) + offset) * visible;
    }
  }
  TORCH_CHECK(false, kernels::unknown_normalizer(normalizer));
}

at::Tensor block_weights(const at::Tensor& s, const at::Tensor& visible, const at::Tensor& count, const at::Tensor& tau,
                         const AttentionOptions& options) {
  using kernels::Normalizer;
  switch (normalizer_of(options)) {
    case Normalizer::softmax:
    case Normalizer::softmax_sink:
      return probabilities(s, options);
    case Normalizer::softpick:
      return softpick(s);
    case Normalizer::sigmoid:
      return at::sigmoid(s - count.log());
    case Normalizer::elastic:
    case Normalizer::elastic_sink: {
      const at::Tensor offset = tau.to(s.scalar_type()).view({1, -1, 1, 1});
      return at::relu(probabilities(s, options) + (options.offset == "per_visible" ? offset / count : offset)) *
             visible;
    }
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      break;
  }
  TORCH_CHECK(false, "attention: normalizer '", options.normalizer, "' is not supported for a block of scores");
}

at::Tensor weight_statistics(const at::Tensor& weights) {
  return at::stack({weights.select(-1, 0), 1 - weights.sum(-1), weights.gt(0).sum(-1).to(weights.scalar_type())})
      .to(at::kFloat);
}

at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v) {
  return at::matmul(weights, to_heads(v.to(weights.scalar_type()), weights.size(1)))
      .transpose(1, 2)
      .to(v.scalar_type());
}

}  // namespace lazy::ops
