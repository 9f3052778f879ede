#include "sinks/uniform.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/statistics.h"

namespace lazy::sinks {
namespace {

// Returns whether the weights of a row with equal scores depend on the value of these scores.
bool depends_on_level(Normalizer normalizer) {
  return kernels::traits(normalizer).takes_sink || normalizer == Normalizer::sigmoid ||
         normalizer == Normalizer::softpick;
}

}  // namespace

double uniform_sink_ratio(Normalizer normalizer, OffsetKind offset, double tau, int64_t length) {
  if (length < 1) fail("sinks", "baseline of uniform attention: expected a length of at least 1, found {}", length);
  const auto queries = static_cast<double>(length);
  const double even = harmonic_number(length) / queries;
  switch (normalizer) {
    case Normalizer::softmax:
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      return even;
    case Normalizer::elastic: {
      if (offset != OffsetKind::constant) return std::max(0.0, 1 + tau) * even;
      double sum = 0;
      for (int64_t i = 1; i <= length; ++i) sum += std::max(0.0, 1 / static_cast<double>(i) + tau);
      return sum / queries;
    }
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
    case Normalizer::sigmoid:
    case Normalizer::softpick:
      break;
  }
  fail("sinks", "baseline of uniform attention: expected softmax, elastic, sparsemax or entmax15, found {}",
       kNormalizerNames.name(normalizer));
}

HeadMatrix uniform_sink_ratios(const LanguageModel& model, int64_t length) {
  const AttentionConfig& attention = model.config().attention;
  HeadMatrix out;
  for (const int64_t window : layer_windows(model.config())) {
    if (window > 0)
      fail("sinks",
           "baseline of uniform attention: expected attention without a sliding window, found a window of {} tokens",
           window);
    const at::Tensor tau = model.tau(static_cast<int64_t>(out.size()));
    const at::Tensor offsets = tau.defined() ? tau.detach().to(at::kCPU, at::kDouble).contiguous() : at::Tensor();
    std::vector<double> heads;
    for (int64_t h = 0; h < attention.num_heads; ++h) {
      const double offset = offsets.defined() ? offsets.const_data_ptr<double>()[h] : 0;
      heads.push_back(uniform_sink_ratio(attention.normalizer, attention.offset, offset, length));
    }
    out.push_back(std::move(heads));
  }
  return out;
}

bool UniformRows::serves(const ModelConfig& config) {
  const auto windows = layer_windows(config);
  return segments_of(config).length == 0 &&
         std::all_of(windows.begin(), windows.end(), [](int64_t w) { return w <= 0; });
}

void UniformRows::add(const std::vector<at::Tensor>& stats) {
  even_.resize(stats.size());
  for (size_t layer = 0; layer < stats.size(); ++layer) {
    const at::Tensor weight = 1 - stats[layer].select(0, 1).to(at::kDouble);  // (batch, heads, length)
    length_ = weight.size(2);
    const at::Tensor keys = at::arange(1, length_ + 1, weight.options());
    const at::Tensor even = (weight / keys).mean(2).sum(0).to(at::kCPU).contiguous();
    even_[layer].resize(static_cast<size_t>(even.size(0)));
    for (int64_t h = 0; h < even.size(0); ++h) even_[layer][static_cast<size_t>(h)] += even.const_data_ptr<double>()[h];
  }
  samples_ += stats.front().size(1);
}

HeadMatrix UniformRows::result() const {
  if (samples_ == 0) fail("sinks", "baseline of uniform attention: expected at least one pass, found none");
  if (!depends_on_level(model_.config().attention.normalizer)) return uniform_sink_ratios(model_, length_);
  HeadMatrix out = even_;
  for (auto& heads : out) {
    for (double& ratio : heads) ratio /= static_cast<double>(samples_);
  }
  return out;
}

double UniformRows::stated() const {
  const AttentionConfig& attention = model_.config().attention;
  const bool per_visible = model_.config().has_offset() && attention.offset == OffsetKind::per_visible;
  return per_visible ? 0 : mean(result());
}

}  // namespace lazy::sinks
