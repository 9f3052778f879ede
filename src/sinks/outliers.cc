#include "sinks/outliers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {
namespace {

// Number of entries that are processed at a time. They fit into the CPU cache.
constexpr int64_t kPart = int64_t{1} << 18;

// Returns the median of |entry| over at most kMedianEntries entries of x at evenly spaced positions.
double median_size(const at::Tensor& x) {
  const int64_t most = std::max<int64_t>(1, kMedianEntries / x.size(1)), every = (x.size(0) + most - 1) / most;
  return x.slice(0, 0, x.size(0), every).to(at::kFloat).abs().median().item<double>();
}

}  // namespace

void Outliers::attach(ActivationHooks& probes) {
  for (const char* glob : {"*residual", "layers.*.attention.input", "layers.*.mixer.input", "layers.*.attention.heads",
                           "layers.*.mlp.input", "layers.*.mlp.inner", "final.hidden"})
    probes.read(glob, [this](const std::string& name, const at::Tensor& activations) { add(name, activations); });
}

void Outliers::add(const std::string& name, const at::Tensor& activations) {
  const at::NoGradGuard no_grad;
  const bool of_layer = name.starts_with("layers.");
  const std::string place = of_layer                   ? name.substr(name.find('.', std::string("layers.").size()) + 1)
                            : name == "final.residual" ? "residual"
                                                       : name;
  if (!places_.count(place)) order_.push_back(place);
  std::vector<LayerSums>& layers = places_[place];
  const auto index = static_cast<size_t>(of_layer ? layer_of(name) : place == "residual" ? layers_ : 0);
  if (layers.size() <= index) layers.resize(index + 1);
  for (const at::Tensor& sample : activations.flatten(2).unbind(0)) add_sample(layers[index], sample);
}

void Outliers::add_sample(LayerSums& sums, const at::Tensor& x) {
  const int64_t length = x.size(0), channels = x.size(1);
  if (!sums.squares.defined()) {
    sums.squares = at::zeros({channels}, x.options().dtype(at::kDouble));
    sums.winners = at::zeros({channels}, x.options().dtype(at::kLong));
  }
  std::vector<at::Tensor> kurtosis, size, where;
  for (const at::Tensor& part : x.split(std::max<int64_t>(1, kPart / channels))) {
    const at::Tensor wide = part.to(at::kFloat);
    const auto [largest, dimension] = wide.abs().max(1);
    size.push_back(largest);
    where.push_back(dimension);
    sums.squares += wide.square().sum(0, false, at::kDouble);
    const at::Tensor square = (wide - wide.mean(1, true)).square_(), variance = square.mean(1);
    kurtosis.push_back(square.square_().mean(1) / variance.square().clamp_min(1e-30));
  }
  const at::Tensor k = at::cat(kurtosis), sizes = at::cat(size), dimensions = at::cat(where);
  Layer& out = sums.layer;
  const double median = median_size(x), largest = sizes.max().item<double>();
  out.kurtosis_first += k[0].item<double>();
  out.kurtosis += k.slice(0, 1).sum(at::kDouble).item<double>();
  out.largest = std::max(out.largest, largest);
  out.median += median;
  out.ratio += median > 0 ? largest / median : 0;
  const at::Tensor spikes = sizes.gt(kSpike * median);
  out.spikes += static_cast<double>(spikes.sum().item<int64_t>());
  out.spikes_first += spikes[0].item<bool>();
  sums.winners += dimensions.slice(0, 1).bincount({}, channels);
  sums.positions += static_cast<double>(length - 1);
  ++sums.samples;
}

std::vector<std::pair<std::string, std::vector<Outliers::Layer>>> Outliers::result() const {
  std::vector<std::pair<std::string, std::vector<Layer>>> out;
  for (const std::string& place : order_) {
    out.emplace_back(place, std::vector<Layer>());
    for (const LayerSums& sums : places_.at(place)) {
      Layer layer = sums.layer;
      const auto samples = static_cast<double>(sums.samples);
      if (sums.samples > 0) {
        for (double* sum : {&layer.kurtosis_first, &layer.median, &layer.ratio, &layer.spikes, &layer.spikes_first})
          *sum /= samples;
        layer.kurtosis /= std::max(1.0, sums.positions);
        const auto [most, dimension] = sums.winners.max(0);
        layer.dimension = dimension.item<int64_t>();
        layer.dimension_share = static_cast<double>(most.item<int64_t>()) / std::max(1.0, sums.positions);
        const at::Tensor rms = (sums.squares / (sums.positions + samples)).sqrt().to(at::kCPU);
        const double middle = rms.median().item<double>();
        const auto [values, indices] = rms.topk(std::min(kChannels, rms.size(0)));
        for (int64_t n = 0; n < values.size(0) && middle > 0; ++n)
          layer.channels.emplace_back(indices[n].item<int64_t>(), values[n].item<double>() / middle);
      }
      out.back().second.push_back(std::move(layer));
    }
  }
  if (out.empty()) fail("sinks", "no samples were measured");
  return out;
}

}  // namespace lazy::sinks
