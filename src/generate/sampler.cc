#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace lazy {

void SamplingOptions::validate(const char* operation) const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    fail(operation, "temperature: expected 0 (greedy) or more, found {}", temperature);
  }
  if (top_k < 0) fail(operation, "top-k: expected 0 (all tokens) or more, found {}", top_k);
  if (!(top_p > 0 && top_p <= 1)) fail(operation, "top-p: expected more than 0 and at most 1, found {}", top_p);
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    fail(operation, "repetition penalty: expected more than 0, found {}", repetition_penalty);
  }
  if (!(min_p >= 0 && min_p <= 1)) fail(operation, "min-p: expected 0 to 1, found {}", min_p);
  if (!std::isfinite(presence_penalty)) {
    fail(operation, "presence penalty: expected a finite number, found {}", presence_penalty);
  }
  if (!std::isfinite(frequency_penalty)) {
    fail(operation, "frequency penalty: expected a finite number, found {}", frequency_penalty);
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0) fail(operation, "logit bias: expected token ids of 0 or more, found {}", id);
    if (!std::isfinite(bias)) fail(operation, "logit bias: expected finite numbers, found {} for token {}", bias, id);
  }
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  options_.validate("generate");
}

void Sampler::adjust(const TokenCounts& counts) {
  for (const auto& [id, bias] : options_.logit_bias) {
    if (id >= static_cast<int64_t>(scores_.size())) {
      fail("generate", "logit bias: token {} is outside the vocabulary of {} tokens", id, scores_.size());
    }
    scores_[static_cast<size_t>(id)] += bias;
  }
  const auto repetition = static_cast<float>(options_.repetition_penalty);
  const auto presence = static_cast<float>(options_.presence_penalty);
  const auto frequency = static_cast<float>(options_.frequency_penalty);
  if (repetition != 1 || presence != 0 || frequency != 0) {
    for (const auto& [id, count] : counts) {
      float& score = scores_.at(static_cast<size_t>(id));
      if (repetition != 1) score = score > 0 ? score / repetition : score * repetition;
      if (count.text > 0) score -= presence + frequency * static_cast<float>(count.text);
    }
  }
}

int64_t Sampler::sample(std::span<const float> logits, const TokenCounts& counts) {
  scores_.assign(logits.begin(), logits.end());
  if (scores_.empty()) fail_run("generate", "expected logits to sample from, found none");
  for (const float score : scores_) {
    if (std::isnan(score)) fail_run("generate", "the model's logits are NaN: its weights have diverged");
  }
  adjust(counts);
  if (options_.temperature == 0) return std::max_element(scores_.begin(), scores_.end()) - scores_.begin();

  // Candidates: the first `sorted` entries of order_ are the most likely tokens in descending order; the other entries
  // are in any order. Equal scores are ordered by id, so that the result does not depend on the sort of the standard
  // library. Only a few entries are sorted, because the filters usually keep few tokens.
  order_.resize(scores_.size());
  std::iota(order_.begin(), order_.end(), 0);
  size_t sorted = 0;
  const auto sort_first = [&](size_t count) {
    std::partial_sort(order_.begin() + static_cast<std::ptrdiff_t>(sorted),
                      order_.begin() + static_cast<std::ptrdiff_t>(count), order_.end(), [&](int32_t a, int32_t b) {
                        const float x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
                        return x != y ? x > y : a < b;
                      });
    sorted = count;
  };
  const double largest = *std::max_element(scores_.begin(), scores_.end());
  const auto weight = [&](size_t n) {
    return std::exp((scores_[static_cast<size_t>(order_[n])] - largest) / options_.temperature);
  };
  size_t kept = order_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  if (kept < order_.size()) sort_first(kept);
  std::vector<double> weights(kept);
  double total = 0;
  for (size_t n = 0; n < kept; ++n) total += weights[n] = weight(n);
  if (options_.top_p < 1) {
    const double wanted = options_.top_p * total;
    total = 0;
    size_t n = 0;
    for (; n < kept && total < wanted; ++n) {
      if (n == sorted) sort_first(std::min(kept, std::max<size_t>(64, 8 * sorted)));
      total += weights[n] = weight(n);
    }
    kept = std::max<size_t>(n, 1);
  }
  if (options_.min_p > 0) {
    // Weights are probabilities relative to the most likely token, whose weight is 1, so min_p is compared with them
    // directly. The filter does not change the order of the remaining candidates.
    size_t n = 0;
    total = 0;
    for (size_t i = 0; i < kept; ++i) {
      if (weights[i] < options_.min_p) continue;
      order_[n] = order_[i];
      total += weights[n++] = weights[i];
    }
    kept = n;
  }
  double point = random_.uniform() * total;
  for (size_t i = 0; i < kept; ++i) {
    point -= weights[i];
    if (point < 0) return order_[i];
  }
  return order_[kept - 1];  // reached only if rounding errors in the sums leave `point` at 0 or above
}

}  // namespace lazy
