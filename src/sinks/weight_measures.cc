#include "sinks/weight_measures.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"

namespace lazy::sinks {
namespace {

// (batch, heads, queries, keys) -> (batch, heads, keys): what each key receives.
at::Tensor received_by_keys(const at::Tensor& weights) { return weights.sum(2, false, at::kDouble); }

struct Entropies {
  at::Tensor sum, queries;  // (batch, heads)
};

Entropies entropies(const at::Tensor& weights) {
  const at::Tensor total = weights.sum(-1, true), kept = total.gt(0);
  const at::Tensor p = weights / at::where(kept, total, at::ones_like(total));
  return {-at::xlogy(p, p).sum({2, 3}, false, at::kDouble), kept.squeeze(-1).sum(-1)};
}

}  // namespace

int64_t layer_of(const std::string& name) {
  const size_t begin = std::string("layers.").size();
  if (!name.starts_with("layers.")) fail("sinks", "expected the name of a layer's place, found '{}'", name);
  return std::stoll(name.substr(begin, name.find('.', begin) - begin));
}

WeightMeasures::Layer& WeightMeasures::layer(const std::string& name) {
  const auto index = static_cast<size_t>(layer_of(name));
  if (layers_.size() <= index) layers_.resize(index + 1);
  return layers_[index];
}

void WeightMeasures::watch(Probes& probes, bool matrices) {
  if (matrices) {
    probes.read("layers.*.attention.weights", [this](const std::string& name, const at::Tensor& weights) {
      const Entropies e = entropies(weights);
      add_sample(layer(name), received_by_keys(weights), e.sum, e.queries);
    });
    return;
  }
  probes.read("layers.*.attention.q", [this](const std::string&, const at::Tensor& q) { q_ = q; });
  probes.read("layers.*.attention.k", [this](const std::string& name, const at::Tensor& k) {
    measure(layer(name), q_, k, layer_of(name));
    q_ = at::Tensor();
  });
}

void WeightMeasures::measure(Layer& layer, const at::Tensor& q, const at::Tensor& k, int64_t index) {
  const at::NoGradGuard no_grad;
  const AttentionTerms terms = model_.attention_terms(index);
  const int64_t length = q.size(1),
                block = std::clamp<int64_t>(most_entries_ / (q.size(0) * q.size(2) * length), 1, length);
  const auto wide = q.options().dtype(at::kDouble);
  const at::Tensor received = at::zeros({q.size(0), q.size(2), length}, wide),
                   entropy = at::zeros({q.size(0), q.size(2)}, wide), queries = at::zeros({q.size(0), q.size(2)}, wide);
  for (int64_t first = 0; first < length; first += block) {
    const int64_t end = std::min(first + block, length);
    // Later keys are not visible to these queries.
    const at::Tensor weights =
        normalized_weights(attention_scores(q.slice(1, first, end), k.slice(1, 0, end), terms, first), terms);
    received.slice(2, 0, end) += received_by_keys(weights);
    const Entropies e = entropies(weights);
    entropy.add_(e.sum);
    queries.add_(e.queries);
  }
  add_sample(layer, received, entropy, queries);
}

void WeightMeasures::add_sample(Layer& layer, const at::Tensor& received, const at::Tensor& entropy,
                                const at::Tensor& queries) {
  const int64_t length = received.size(2);
  const at::Tensor alpha = received / at::arange(length, 0, -1, received.options());
  const auto sum = [](at::Tensor& total, const at::Tensor& values) {
    const at::Tensor more = values.sum(0, false, at::kDouble).to(at::kCPU);
    if (total.defined() && total.sizes() != more.sizes())
      fail("sinks", "samples of one length can be measured together, found two");
    total = total.defined() ? total + more : more;
  };
  sum(layer.alpha, alpha);
  sum(layer.over, alpha.gt(threshold_));
  sum(layer.entropy, entropy);
  sum(layer.queries, queries);
  layer.samples += received.size(0);
}

WeightMeasures::Result WeightMeasures::result() const {
  if (layers_.empty()) fail("sinks", "no samples were measured");
  std::vector<at::Tensor> alpha, sink, entropy;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    if (layer.samples == 0) fail("sinks", "expected attention in every layer, found another mixer in layer {}", l);
    const auto samples = static_cast<double>(layer.samples);
    alpha.push_back(layer.alpha / samples);
    sink.push_back(layer.over / samples);
    entropy.push_back(layer.entropy / layer.queries.clamp_min(1));
  }
  return {at::stack(alpha), at::stack(sink), at::stack(entropy), layers_.front().samples, threshold_};
}

}  // namespace lazy::sinks
