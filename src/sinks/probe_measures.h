// Measures that read activations and attention weights at probe points (model/activation_hooks.h) during a pass. The
// tensor of each layer is reduced immediately: no activation is stored and no n x n matrix is allocated. A measure is
// attached to the probes of one or more passes and must outlive them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/activation_hooks.h"
#include "model/language_model.h"
#include "sinks/decode_reads.h"
#include "sinks/measures.h"
#include "sinks/outliers.h"

namespace lazy::sinks {

// Measures of the attention weights, computed for one block of queries at a time. T is the number of tokens.
//
//   alpha_k        sum over queries i >= k of the weight on key k, divided by the number of these queries, T - k + 1
//   Sink_k^eps     fraction of samples whose alpha_k exceeds eps, per layer and head; the published value is its mean
//   entropy        in nats, of the weights of a query normalized to sum 1; mean over queries with a nonzero weight
//
// Keys are 1-based in these names, as in the paper.
class WeightMeasures {
 public:
  explicit WeightMeasures(const LanguageModel& model, double threshold = 0.3, int64_t most_entries = int64_t{1} << 24)
      : model_(model), threshold_(threshold), most_entries_(most_entries) {}
  // Adds hooks that measure a forward pass. All samples must have the same length. With `matrices`, the attention
  // weights of the pass are read as whole matrices. This is needed if the weights cannot be computed from q and k alone
  // (needs_matrices in sinks/attention_maps.h).
  void attach(ActivationHooks& probes, bool matrices = false);

  struct Result {
    at::Tensor alpha, sink;  // (layers, heads, length) float64: mean alpha_k, and Sink_k^eps as a fraction
    at::Tensor entropy;      // (layers, heads) float64: mean entropy in nats
    int64_t samples = 0;
    double threshold = 0.3;
  };
  Result result() const;  // throws Error if nothing was measured

 private:
  struct Layer {
    at::Tensor alpha, over;       // shape (heads, length): sums over samples
    at::Tensor entropy, queries;  // shape (heads): sums over samples
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

// Returns the layer index in the name of a probe point, such as 3 for "layers.3.residual".
int64_t layer_of(const std::string& name);

// L2 norm and unbiased variance (over the entries of the vector) of every vector at one probe point of every layer, as
// means over samples for each position.
class VectorStatistics {
 public:
  // `place` is the part of the probe point name after "layers.N.", for example "residual" (hidden states),
  // "attention.input" (called hidden states in the tables of the paper) or "attention.v".
  explicit VectorStatistics(std::string place) : place_(std::move(place)) {}
  void attach(ActivationHooks& probes);
  struct Result {
    at::Tensor norm, variance;  // (layers, heads, length) float64; one head if the vectors are not split into heads
  };
  Result result() const;  // throws Error if nothing was measured
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  std::vector<at::Tensor> norm_, variance_;  // sums over samples, indexed by [layer]
  std::vector<int64_t> samples_;
};

// Massive activations (Sun et al. 2024): entries a of a hidden state with |a| > 100 and |a| > 1000 median(|a|).
class MassiveActivations {
 public:
  explicit MassiveActivations(int64_t layers, double least = 100, double times = 1000)
      : least_(least), times_(times), layers_(static_cast<size_t>(layers) + 1) {}
  void attach(ActivationHooks& probes);
  struct OutlierStatistics {
    double largest = 0;                                    // maximum of |a| over samples
    double median = 0;                                     // median of |a|, mean over samples
    double count = 0;                                      // number of massive entries per sample
    int64_t position = 0, dimension = 0;                   // 0-based position and dimension of the largest entry
    std::map<int64_t, int64_t> by_dimension, by_position;  // number of massive entries over all samples
    int64_t samples = 0;
  };
  // Returns one entry for the hidden state before each layer and one after the last layer. Throws Error if nothing was
  // measured.
  std::vector<OutlierStatistics> result() const;

 private:
  double least_, times_;
  std::vector<OutlierStatistics> layers_;
};

// Similarity between the hidden states of different positions.
struct HiddenSimilarity {
  double cosine = 0;          // cosine similarity, mean over pairs of different positions
  double effective_rank = 0;  // exp of the entropy of the normalized singular values (Roy and Vetterli 2007)
};
HiddenSimilarity hidden_similarity(const at::Tensor& hidden);  // (positions, dim)

// Measures representational collapse: the similarity between the hidden states of different positions, before each
// layer, after the last layer and after the last norm. There is one result per sample.
class Collapse {
 public:
  // Singular values are expensive to compute, so only the first `most` samples are measured.
  explicit Collapse(int64_t layers, size_t most = 16) : most_(most), places_(static_cast<size_t>(layers) + 2) {}
  void attach(ActivationHooks& probes);
  // one result per sample, indexed by [place][sample]; places are numbered by layer
  const std::vector<std::vector<HiddenSimilarity>>& result() const { return places_; }

 private:
  size_t most_;
  std::vector<std::vector<HiddenSimilarity>> places_;
};

// The results of the additional measures that kFurtherMeasures lists.
struct FurtherMeasures {
  std::optional<WeightMeasures::Result> weights;
  std::map<std::string, VectorStatistics::Result> vectors;  // maps the name of a probe point to the result
  std::vector<MassiveActivations::OutlierStatistics> massive;
  std::vector<std::vector<HiddenSimilarity>> collapse;
  // pairs of the name of a probe point and the results of its layers
  std::vector<std::pair<std::string, std::vector<Outliers::Layer>>> outliers;
  std::optional<DecodeReads::Result> decode;  // empty for Transformer-XL, for which it cannot be measured
};

class FurtherMeasureCollector {
 public:
  // Throws Error for an unknown measure. `model` must outlive this object.
  FurtherMeasureCollector(const LanguageModel& model, const std::vector<std::string>& measures, double threshold);
  // Attaches the measures that need short samples (the sample length of Sink_k) if `short_samples` is set, otherwise
  // all other measures. `matrices`: see WeightMeasures.
  void attach(ActivationHooks& probes, bool short_samples, bool matrices);
  FurtherMeasures result() const;

 private:
  std::optional<WeightMeasures> weights_;
  std::vector<VectorStatistics> vectors_;
  std::optional<MassiveActivations> massive_;
  std::optional<Collapse> collapse_;
  std::optional<Outliers> outliers_;
  std::optional<DecodeReads> decode_;
};

}  // namespace lazy::sinks
