#include "sinks/residual_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {

namespace {

// Adds the statistics of the residual stream x, (batch, positions, width) fp32, to the sums in `part`.
void add(ResidualStatistics::ResidualMoments& part, const at::Tensor& x) {
  if (x.numel() == 0) return;
  const at::Tensor square = (x - x.mean(-1, true)).square(), variance = square.mean(-1);
  const at::Tensor kurtosis = square.square().mean(-1) / variance.square().clamp_min(1e-30);
  part.kurtosis += kurtosis.sum(at::kDouble).item<double>();
  part.rms += x.square().mean(-1).sqrt().sum(at::kDouble).item<double>();
  part.largest = std::max(part.largest, x.abs().max().item<double>());
  part.positions += static_cast<double>(x.size(0) * x.size(1));
}

ResidualStatistics::ResidualMoments mean_of(ResidualStatistics::ResidualMoments part) {
  if (part.positions == 0) return part;
  part.kurtosis /= part.positions;
  part.rms /= part.positions;
  return part;
}

}  // namespace

void ResidualStatistics::attach(ActivationHooks& probes) {
  probes.read("*residual", [this](const std::string& name, const at::Tensor& hidden) {
    const at::NoGradGuard no_grad;
    PositionStatistics& place =
        name == "final.residual" ? places_.back() : places_.at(static_cast<size_t>(layer_of(name)));
    const at::Tensor x = hidden.to(at::kFloat);
    add(place.first, x.narrow(1, 0, 1));
    add(place.others, x.narrow(1, 1, x.size(1) - 1));
  });
}

std::vector<ResidualStatistics::PositionStatistics> ResidualStatistics::result() const {
  std::vector<PositionStatistics> out;
  for (const PositionStatistics& place : places_) {
    if (place.first.positions == 0) fail("sinks", "no samples were measured");
    out.push_back({mean_of(place.first), mean_of(place.others)});
  }
  return out;
}

}  // namespace lazy::sinks
