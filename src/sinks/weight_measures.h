// Measures that need the weights themselves, computed a block of queries at a time: no n x n matrix exists.
//
//   alpha_k        sum over queries i >= k of the weight on key k, over their number T - k + 1 (SPEC section 4)
//   Sink_k^eps     share of samples whose alpha_k exceeds eps, per layer and head; the published figure is its mean
//   entropy        of a query's weights scaled to sum 1, in nats, mean over queries that keep any weight
//
// Keys are numbered from 1 in these names, as in the paper.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/language_model.h"
#include "model/probes.h"

namespace lazy::sinks {

class WeightMeasures {
 public:
  explicit WeightMeasures(const LanguageModel& model, double threshold = 0.3, int64_t most_entries = int64_t{1} << 24)
      : model_(model), threshold_(threshold), most_entries_(most_entries) {}
  // Measures every pass that these probes take part in; samples must have one length. With `matrices`, weights do
  // not follow from q and k (sinks/weights.h): then the pass's own are measured, whole.
  void watch(Probes& probes, bool matrices = false);

  struct Result {
    at::Tensor alpha, sink;  // (layers, heads, length) float64: mean alpha_k, and Sink_k^eps as a share
    at::Tensor entropy;      // (layers, heads) float64, nats
    int64_t samples = 0;
    double threshold = 0.3;
  };
  Result result() const;  // Error when nothing was measured

 private:
  struct Layer {
    at::Tensor alpha, over;       // (heads, length), sums over samples
    at::Tensor entropy, queries;  // (heads), sums
    int64_t samples = 0;
  };
  Layer& layer(const std::string& name);
  void add_sample(Layer& layer, const at::Tensor& received, const at::Tensor& entropy, const at::Tensor& queries);
  void measure(Layer& layer, const at::Tensor& q, const at::Tensor& k, int64_t index);

  const LanguageModel& model_;
  double threshold_;
  int64_t most_entries_;
  std::vector<Layer> layers_;
  at::Tensor q_;
};

// The layer's number in a probe's name.
int64_t layer_of(const std::string& name);

}  // namespace lazy::sinks
