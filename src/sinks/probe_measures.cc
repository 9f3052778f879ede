#include "sinks/probe_measures.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/attention_weights.h"

namespace lazy::sinks {

namespace {

// Sums the weights over queries: (batch, heads, queries, keys) -> (batch, heads, keys).
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
  if (!name.starts_with("layers.")) fail("sinks", "expected the name of a probe point in a layer, found '{}'", name);
  return std::stoll(name.substr(begin, name.find('.', begin) - begin));
}

WeightMeasures::Layer& WeightMeasures::layer(const std::string& name) {
  const auto index = static_cast<size_t>(layer_of(name));
  if (layers_.size() <= index) layers_.resize(index + 1);
  return layers_[index];
}

void WeightMeasures::attach(ActivationHooks& probes, bool matrices) {
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
  const ops::AttentionTerms terms = model_.attention_terms(index);
  const int64_t length = q.size(1),
                block = std::clamp<int64_t>(most_entries_ / (q.size(0) * q.size(2) * length), 1, length);
  const auto wide = q.options().dtype(at::kDouble);
  const at::Tensor received = at::zeros({q.size(0), q.size(2), length}, wide),
                   entropy = at::zeros({q.size(0), q.size(2)}, wide), queries = at::zeros({q.size(0), q.size(2)}, wide);
  for (int64_t first = 0; first < length; first += block) {
    const int64_t end = std::min(first + block, length);
    // Only the keys before `end` are needed, because the queries of this block do not see later keys.
    const at::Tensor weights =
        ops::normalized_weights(ops::attention_scores(q.slice(1, first, end), k.slice(1, 0, end), terms, first), terms);
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
      fail("sinks", "all samples that are measured together must have the same length, found two different lengths");
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

namespace {

// Returns the index of hidden states in lists by position in the model: N for the hidden states before layer N, the
// number of layers for those after the last layer, and the number of layers + 1 for those after the last norm.
size_t place_of(const std::string& name, size_t layers) {
  if (name == "final.hidden") return layers + 1;
  return name == "final.residual" ? layers : static_cast<size_t>(layer_of(name));
}

}  // namespace

void VectorStatistics::attach(ActivationHooks& probes) {
  probes.read("layers.*." + place_, [this](const std::string& name, const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    // Sums over the batch: (batch, length) or (batch, length, heads) -> (heads, length). Vectors without heads have
    // one.
    const auto sum = [](at::Tensor values) {
      if (values.dim() == 2) values = values.unsqueeze(2);
      return values.sum(0, false, at::kDouble).t().to(at::kCPU);
    };
    const auto layer = static_cast<size_t>(layer_of(name));
    if (norm_.size() <= layer) norm_.resize(layer + 1), variance_.resize(layer + 1), samples_.resize(layer + 1);
    const at::Tensor norm = sum(at::linalg_vector_norm(tensor, 2, {-1}, false, at::kDouble));
    const at::Tensor variance =
        sum(tensor.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).var(-1, /*unbiased=*/true));
    if (norm_[layer].defined() && norm_[layer].sizes() != norm.sizes())
      fail("sinks", "all samples that are measured together must have the same length, found two different lengths");
    norm_[layer] = norm_[layer].defined() ? norm_[layer] + norm : norm;
    variance_[layer] = variance_[layer].defined() ? variance_[layer] + variance : variance;
    samples_[layer] += tensor.size(0);
  });
}

VectorStatistics::Result VectorStatistics::result() const {
  std::vector<at::Tensor> norm, variance;
  for (size_t l = 0; l < norm_.size(); ++l) {
    if (samples_[l] == 0) fail("sinks", "layer {} has no probe point {}", l, place_);
    norm.push_back(norm_[l] / double(samples_[l]));
    variance.push_back(variance_[l] / double(samples_[l]));
  }
  if (norm.empty()) fail("sinks", "no layer has a probe point {}", place_);
  return {at::stack(norm), at::stack(variance)};
}

void MassiveActivations::attach(ActivationHooks& probes) {
  probes.read("*residual", [this](const std::string& name, const at::Tensor& hidden) {
    const at::NoGradGuard no_grad;
    OutlierStatistics& place = layers_.at(place_of(name, layers_.size() - 1));
    const int64_t length = hidden.size(1), width = hidden.size(2);
    for (int64_t sample = 0; sample < hidden.size(0); ++sample) {
      const at::Tensor size = hidden[sample].abs().to(at::kFloat).reshape({-1});
      const auto [largest, where] = size.max(0);
      const double median = size.median().item<double>();
      if (largest.item<double>() > place.largest) {
        place.largest = largest.item<double>();
        place.position = where.item<int64_t>() / width;
        place.dimension = where.item<int64_t>() % width;
      }
      const at::Tensor massive = size.gt(std::max(least_, times_ * median)).view({length, width});
      const at::Tensor entries = massive.nonzero().to(at::kCPU);
      for (int64_t n = 0; n < entries.size(0); ++n) {
        ++place.by_position[entries[n][0].item<int64_t>()];
        ++place.by_dimension[entries[n][1].item<int64_t>()];
      }
      place.count += static_cast<double>(entries.size(0));
      place.median += median;
      ++place.samples;
    }
  });
}

std::vector<MassiveActivations::OutlierStatistics> MassiveActivations::result() const {
  std::vector<OutlierStatistics> out = layers_;
  for (OutlierStatistics& place : out) {
    if (place.samples == 0) fail("sinks", "no samples were measured");
    place.count /= static_cast<double>(place.samples);
    place.median /= static_cast<double>(place.samples);
  }
  return out;
}

HiddenSimilarity hidden_similarity(const at::Tensor& hidden) {
  const at::Tensor rows = hidden.to(at::kCPU, at::kDouble), unit = rows / rows.norm(2, {1}, true).clamp_min(1e-12);
  const auto n = static_cast<double>(rows.size(0));
  // sum over all pairs of positions, including the pairs of a position with itself
  const double all = unit.sum(0).square().sum().item<double>();
  at::Tensor p = at::linalg_svdvals(rows);
  p = p / p.sum();
  return {(all - n) / (n * (n - 1)), std::exp(-at::xlogy(p, p).sum().item<double>())};
}

void Collapse::attach(ActivationHooks& probes) {
  const auto add = [this](const std::string& name, const at::Tensor& hidden) {
    const at::NoGradGuard no_grad;
    auto& place = places_.at(place_of(name, places_.size() - 2));
    for (int64_t sample = 0; sample < hidden.size(0) && place.size() < most_; ++sample)
      place.push_back(hidden_similarity(hidden[sample]));
  };
  probes.read("*residual", add);
  probes.read("final.hidden", add);
}

namespace {

// Probe points of the measure "vectors": hidden states as the residual stream and after the norm, as in the tables of
// the paper, and queries and keys before their norm and rotation.
constexpr const char* kVectorPlaces[] = {"residual", "attention.input", "attention.q.projected",
                                         "attention.k.projected", "attention.v"};

}  // namespace

FurtherMeasureCollector::FurtherMeasureCollector(const LanguageModel& model, const std::vector<std::string>& measures,
                                                 double threshold) {
  const int64_t layers = model.config().num_layers;
  for (const std::string& measure : measures) {
    if (measure == "weights") {
      weights_.emplace(model, threshold);
    } else if (measure == "vectors") {
      for (const char* place : kVectorPlaces) vectors_.emplace_back(place);
    } else if (measure == "massive") {
      massive_.emplace(layers);
    } else if (measure == "collapse") {
      collapse_.emplace(layers);
    } else if (measure == "outliers") {
      outliers_.emplace(layers);
    } else if (measure == "decode") {
      decode_.emplace(model);
    } else {
      fail("sinks", "--measures: expected all or some of {}, found '{}'", fmt::join(kFurtherMeasures, ", "), measure);
    }
  }
}

void FurtherMeasureCollector::attach(ActivationHooks& probes, bool short_samples, bool matrices) {
  if (short_samples) {
    if (weights_) weights_->attach(probes, matrices);
    for (VectorStatistics& vectors : vectors_) vectors.attach(probes);
  } else {
    if (massive_) massive_->attach(probes);
    if (collapse_) collapse_->attach(probes);
    if (outliers_) outliers_->attach(probes);
    if (decode_ && !matrices) decode_->attach(probes);
  }
}

FurtherMeasures FurtherMeasureCollector::result() const {
  FurtherMeasures out;
  if (weights_) out.weights = weights_->result();
  for (const VectorStatistics& vectors : vectors_) out.vectors[vectors.place()] = vectors.result();
  if (massive_) out.massive = massive_->result();
  if (collapse_) out.collapse = collapse_->result();
  if (outliers_) out.outliers = outliers_->result();
  if (decode_ && !decode_->empty()) out.decode = decode_->result();
  return out;
}

}  // namespace lazy::sinks
