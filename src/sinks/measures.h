// The measures of attention sinks, computed from the row statistics of the attention kernel without an n x n matrix.
//
//   sink ratio     weight on the first key, mean over samples, layers, heads and queries
//   released mass  1 - sum of the weights, mean over samples, layers, heads and queries
//   density        weight on all keys except the first: 1 - sink ratio - released mass
//   alive fraction fraction of visible (query, key) pairs whose weight is above zero
//   Sink_1^eps     fraction of (sample, layer, head) triples whose mean weight on the first key exceeds eps
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

// Explanation of the first four measures, which is printed after tables.
inline constexpr const char* kMeasureLegend =
    "sink ratio: mean weight on the first key; density: mean weight on all other keys; released mass: 1 minus sink "
    "ratio and density; alive fraction: share of visible pairs with a weight above zero\n";

using HeadMatrix = std::vector<std::vector<double>>;  // [layer][head]

struct Measures {
  HeadMatrix sink_ratio, density, released_mass, alive_fraction;
};

class MeasureSum {
 public:
  explicit MeasureSum(Segments segments = {}) : segments_(segments) {}
  // Adds the statistics of one pass without a cache. `stats` is ForwardResult::stats: for each layer a tensor (3,
  // batch, heads, length). `windows` is the result of layer_windows for the model.
  void add(const std::vector<at::Tensor>& stats, const std::vector<int64_t>& windows);
  Measures result() const;  // throws Error if add() was never called

 private:
  Segments segments_;
  // Sums over samples and queries, indexed by [layer][head].
  std::vector<std::vector<double>> first_, released_, alive_;
  std::vector<double> pairs_;  // number of visible pairs, indexed by [layer]
  double queries_ = 0;
};

// For each layer and head, counts the samples of `stats` whose mean weight on the first key exceeds `threshold`.
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

// Additional measures that `lazy sinks --measures` selects by name:
//   weights   Sink_k^eps, alpha_k of every key, and entropy (short samples)
//   vectors   norms and variances by position (short samples)
//   massive   massive activations
//   collapse  similarity of hidden states by layer
//   outliers  outliers of the residual stream and of the inputs of matrix products
//   decode    rows of K and V that a decode step needs
inline const std::vector<std::string> kFurtherMeasures{"weights",  "vectors",  "massive",
                                                       "collapse", "outliers", "decode"};

double mean(const HeadMatrix& values);
// Returns the sliding window of each layer, -1 for none. Throws Error for a layer without attention.
std::vector<int64_t> layer_windows(const ModelConfig& config);
Segments segments_of(const ModelConfig& config);
// Returns the number of visible (query, key) pairs per head among `length` tokens.
double visible_pairs(int64_t length, int64_t window, const Segments& segments = {});

}  // namespace lazy::sinks
