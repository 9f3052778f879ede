#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace lazy {

void SamplingOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    fail("generate", "temperature: expected 0 (greedy) or more, found {}", temperature);
  }
  if (top_k < 0) fail("generate", "top-k: expected 0 (all tokens) or more, found {}", top_k);
  if (!(top_p > 0 && top_p <= 1)) fail("generate", "top-p: expected more than 0 and at most 1, found {}", top_p);
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    fail("generate", "repetition penalty: expected more than 0, found {}", repetition_penalty);
  }
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) { options_.validate(); }

int64_t Sampler::sample(std::span<const float> logits, const std::unordered_set<int64_t>& seen) {
  scores_.assign(logits.begin(), logits.end());
  if (scores_.empty()) fail_run("generate", "no logits to pick from");
  for (const float score : scores_) {
    if (std::isnan(score)) fail_run("generate", "the model's logits are not numbers: its weights have diverged");
  }
  if (options_.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    for (const int64_t id : seen) {
      float& score = scores_.at(static_cast<size_t>(id));
      score = score > 0 ? score / penalty : score * penalty;
    }
  }
  if (options_.temperature == 0) return std::max_element(scores_.begin(), scores_.end()) - scores_.begin();

  // Candidates, most likely first. Equal scores are ordered by id, independently of the library's sort.
  order_.resize(scores_.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t kept = order_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  const bool all = kept == order_.size() && options_.top_p >= 1;
  if (!all) std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(), before);

  const double largest = *std::max_element(scores_.begin(), scores_.end());
  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((scores_[static_cast<size_t>(order_[i])] - largest) / options_.temperature);
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options_.top_p < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < kept && sum < options_.top_p * total) sum += weights[n++];
    kept = std::max<size_t>(n, 1);
    total = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  }
  double point = random_.uniform() * total;
  for (size_t i = 0; i < kept; ++i) {
    point -= weights[i];
    if (point < 0) return order_[i];
  }
  return order_[kept - 1];  // reached only by rounding
}

}  // namespace lazy
