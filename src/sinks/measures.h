// The sink measures, computed from the attention kernel's per-row statistics without an n x n matrix.
//
//   sink ratio     mean over samples, layers, heads and queries of the weight on the first key
//   released mass  the same mean of 1 - sum of weights
//   density        the same mean of the weight on the other keys: 1 - sink ratio - released mass
//   alive fraction share of visible pairs whose weight is above zero
//   Sink_1^eps     share of (sample, layer, head) whose mean weight on the first key exceeds eps
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/positions/segments.h"
#include "model/torch_forward.h"

namespace lazy {
struct ModelConfig;
}

namespace lazy::sinks {

using HeadMatrix = std::vector<std::vector<double>>;  // [layer][head]

struct Measures {
  HeadMatrix sink_ratio, density, released_mass, alive_fraction;
};

class MeasureSum {
 public:
  explicit MeasureSum(Segments segments = {}) : segments_(segments) {}
  // `stats`: ForwardResult::stats of one pass without a cache, per layer (3, batch, heads, length).
  // `windows`: layer_windows of the model.
  void add(const std::vector<at::Tensor>& stats, const std::vector<int64_t>& windows);
  Measures result() const;  // Error when nothing was added

 private:
  Segments segments_;
  std::vector<std::vector<double>> first_, released_, alive_;  // [layer][head], sums
  std::vector<double> pairs_;                                  // [layer]
  double queries_ = 0;
};

// Counts, per layer and head, the samples of `stats` whose mean weight on the first key is above `threshold`.
class SinkRate {
 public:
  explicit SinkRate(double threshold = 0.3) : threshold_(threshold) {}
  void add(const std::vector<at::Tensor>& stats);
  HeadMatrix result() const;
  int64_t samples() const { return samples_; }

 private:
  double threshold_;
  std::vector<std::vector<double>> over_;
  int64_t samples_ = 0;
};

// The measures that `lazy sinks --measures` selects by name:
// weights: Sink_k^eps and alpha_k of every key, entropy (short samples); vectors: norms and variances by position
// (short samples); massive: massive activations; collapse: similarity of hidden states by layer; outliers: of the
// residual stream and the inputs of products; decode: rows of K and V that a decode step needs.
inline const std::vector<std::string> kFurtherMeasures{"weights",  "vectors",  "massive",
                                                       "collapse", "outliers", "decode"};

double mean(const HeadMatrix& values);
// Each layer's sliding window, -1 for none. Error for a layer that is not attention.
std::vector<int64_t> layer_windows(const ModelConfig& config);
Segments segments_of(const ModelConfig& config);
// Number of visible (query, key) pairs among `length` tokens, per head.
double visible_pairs(int64_t length, int64_t window, const Segments& segments = {});

}  // namespace lazy::sinks
