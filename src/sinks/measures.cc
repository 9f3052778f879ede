#include "sinks/measures.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "model/config.h"

namespace lazy::sinks {
namespace {

// Adds a tensor of shape (heads) to row `layer`. Missing rows are created with zeros.
void accumulate(HeadMatrix* sums, size_t layer, const at::Tensor& values) {
  if (sums->size() <= layer) sums->resize(layer + 1);
  const at::Tensor on_cpu = values.to(at::kCPU, at::kDouble).contiguous();
  auto& row = (*sums)[layer];
  if (row.empty()) row.assign(static_cast<size_t>(on_cpu.numel()), 0.0);
  for (size_t h = 0; h < row.size(); ++h) row[h] += on_cpu.data_ptr<double>()[h];
}

HeadMatrix divided(HeadMatrix values, const std::vector<double>& by) {
  for (size_t layer = 0; layer < values.size(); ++layer) {
    for (double& v : values[layer]) v /= by[layer];
  }
  return values;
}

}  // namespace

std::vector<int64_t> layer_windows(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.mixer_of(layer) != MixerType::attention) {
      fail("sinks", "expected attention in every layer, found {} in layer {}", name(config.mixer_of(layer)), layer);
    }
    windows.push_back(config.window_of(layer));
  }
  return windows;
}

Segments segments_of(const ModelConfig& config) {
  return {config.positions.segment_length, config.positions.memory_length};
}

double visible_pairs(int64_t length, int64_t window, const Segments& segments) {
  if (segments.length > 0) {
    double pairs = 0;
    for (int64_t i = 0; i < length; ++i)
      pairs += double(std::min(i + 1 - segments.first_seen(i), window > 0 ? window : i + 1));
    return pairs;
  }
  const int64_t w = window > 0 ? std::min(window, length) : length;
  // With a sliding window of w keys, the first w queries see 1, 2, ..., w keys. All later queries see w keys.
  return double(w) * double(w + 1) / 2 + double(length - w) * double(w);
}

void MeasureSum::add(const std::vector<at::Tensor>& stats, const std::vector<int64_t>& windows) {
  if (stats.empty()) return;
  pairs_.resize(stats.size());
  for (size_t layer = 0; layer < stats.size(); ++layer) {
    pairs_[layer] += double(stats[layer].size(1)) * visible_pairs(stats[layer].size(3), windows.at(layer), segments_);
    const at::Tensor sums = stats[layer].sum({1, 3}, false, at::kDouble);  // (3, heads)
    accumulate(&first_, layer, sums[0]);
    accumulate(&released_, layer, sums[1]);
    accumulate(&alive_, layer, sums[2]);
  }
  queries_ += double(stats[0].size(1)) * double(stats[0].size(3));
}

Measures MeasureSum::result() const {
  if (queries_ == 0) fail("sinks", "no samples were measured");
  const std::vector<double> queries(first_.size(), queries_);
  Measures m{divided(first_, queries), {}, divided(released_, queries), divided(alive_, pairs_)};
  m.density = m.sink_ratio;
  for (size_t l = 0; l < m.density.size(); ++l) {
    for (size_t h = 0; h < m.density[l].size(); ++h) m.density[l][h] = 1 - m.sink_ratio[l][h] - m.released_mass[l][h];
  }
  return m;
}

void SinkRate::add(const std::vector<at::Tensor>& stats) {
  for (size_t layer = 0; layer < stats.size(); ++layer) {
    const at::Tensor alpha = stats[layer][0].mean(-1, false, at::kDouble);  // (batch, heads)
    accumulate(&over_, layer, alpha.gt(threshold_).sum(0));
  }
  if (!stats.empty()) samples_ += stats[0].size(1);
}

HeadMatrix SinkRate::result() const {
  if (samples_ == 0) fail("sinks", "no samples were measured");
  return divided(over_, std::vector<double>(over_.size(), double(samples_)));
}

double mean(const HeadMatrix& values) {
  double sum = 0, count = 0;
  for (const auto& row : values) {
    for (double v : row) sum += v, ++count;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace lazy::sinks
