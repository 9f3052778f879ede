#include "sinks/state_measures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "sinks/weight_measures.h"

namespace lazy::sinks {
namespace {

// Before layer N: N. After the last layer and after the last norm: the two numbers that follow.
size_t place_of(const std::string& name, size_t layers) {
  if (name == "final.hidden") return layers + 1;
  return name == "final.residual" ? layers : static_cast<size_t>(layer_of(name));
}

}  // namespace

void VectorStatistics::watch(Probes& probes) {
  probes.read("layers.*." + place_, [this](const std::string& name, const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    // (batch, length, dim) or (batch, length, heads, dim) -> (heads, length)
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
      fail("sinks", "samples of one length can be measured together, found two");
    norm_[layer] = norm_[layer].defined() ? norm_[layer] + norm : norm;
    variance_[layer] = variance_[layer].defined() ? variance_[layer] + variance : variance;
    samples_[layer] += tensor.size(0);
  });
}

VectorStatistics::Result VectorStatistics::result() const {
  std::vector<at::Tensor> norm, variance;
  for (size_t l = 0; l < norm_.size(); ++l) {
    if (samples_[l] == 0) fail("sinks", "layer {} has no place {}", l, place_);
    norm.push_back(norm_[l] / double(samples_[l]));
    variance.push_back(variance_[l] / double(samples_[l]));
  }
  if (norm.empty()) fail("sinks", "no layer has a place {}", place_);
  return {at::stack(norm), at::stack(variance)};
}

void MassiveActivations::watch(Probes& probes) {
  probes.read("*residual", [this](const std::string& name, const at::Tensor& hidden) {
    const at::NoGradGuard no_grad;
    Place& place = layers_.at(place_of(name, layers_.size() - 1));
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

std::vector<MassiveActivations::Place> MassiveActivations::result() const {
  std::vector<Place> out = layers_;
  for (Place& place : out) {
    if (place.samples == 0) fail("sinks", "no samples were measured");
    place.count /= static_cast<double>(place.samples);
    place.median /= static_cast<double>(place.samples);
  }
  return out;
}

Alikeness alikeness(const at::Tensor& hidden) {
  const at::Tensor rows = hidden.to(at::kCPU, at::kDouble), unit = rows / rows.norm(2, {1}, true).clamp_min(1e-12);
  const auto n = static_cast<double>(rows.size(0));
  const double all = unit.sum(0).square().sum().item<double>();  // of all pairs, each position with itself among them
  at::Tensor p = at::linalg_svdvals(rows);
  p = p / p.sum();
  return {(all - n) / (n * (n - 1)), std::exp(-at::xlogy(p, p).sum().item<double>())};
}

void Collapse::watch(Probes& probes) {
  const auto add = [this](const std::string& name, const at::Tensor& hidden) {
    const at::NoGradGuard no_grad;
    auto& place = places_.at(place_of(name, places_.size() - 2));
    for (int64_t sample = 0; sample < hidden.size(0) && place.size() < most_; ++sample)
      place.push_back(alikeness(hidden[sample]));
  };
  probes.read("*residual", add);
  probes.read("final.hidden", add);
}

}  // namespace lazy::sinks
