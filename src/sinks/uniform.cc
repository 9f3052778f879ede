#include "sinks/uniform.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/statistics.h"

namespace lazy::sinks {

double uniform_sink_ratio(Normalizer normalizer, OffsetKind offset, double tau, int64_t length) {
  if (length < 1) fail("sinks", "uniform rows: expected a length of at least 1, found {}", length);
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
    case Normalizer::sigmoid:
    case Normalizer::softpick:
      break;
  }
  fail("sinks", "uniform rows: expected softmax, elastic, sparsemax or entmax15, found {}",
       kNormalizerNames.name(normalizer));
}

HeadMatrix uniform_sink_ratios(const LanguageModel& model, int64_t length) {
  const AttentionConfig& attention = model.config().attention;
  HeadMatrix out;
  for (const int64_t window : layer_windows(model.config())) {
    if (window > 0) fail("sinks", "uniform rows: expected attention without a sliding window, found one of {}", window);
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

}  // namespace lazy::sinks
