// What vectors look like position by position, streamed over a pass: a layer's tensor is reduced when it is there, and
// never kept.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "model/probes.h"

namespace lazy::sinks {

// L2 norm and unbiased variance (over the vector's entries) of every vector at the places that a glob names, each
// position's mean over samples.
class VectorStatistics {
 public:
  // `place` after "layers.N.": "residual" (hidden states), "attention.input" (what the paper's tables call so),
  // "attention.v", ...
  explicit VectorStatistics(std::string place) : place_(std::move(place)) {}
  void watch(Probes& probes);
  struct Result {
    at::Tensor norm, variance;  // (layers, heads, length) float64; heads is 1 where vectors are not cut into heads
  };
  Result result() const;  // Error when nothing was measured
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  std::vector<at::Tensor> norm_, variance_;  // [layer], sums
  std::vector<int64_t> samples_;
};

// Massive activations (Sun et al. 2024): |a| > 100 and > 1000 times the median |a| of that layer's hidden state.
class MassiveActivations {
 public:
  explicit MassiveActivations(int64_t layers, double least = 100, double times = 1000)
      : least_(least), times_(times), layers_(static_cast<size_t>(layers) + 1) {}
  void watch(Probes& probes);
  struct Place {
    double largest = 0;                                    // max |a| over samples
    double median = 0;                                     // mean over samples of the median |a|
    double count = 0;                                      // massive entries a sample
    int64_t position = 0, dimension = 0;                   // of the largest, from 0
    std::map<int64_t, int64_t> by_dimension, by_position;  // massive entries of all samples
    int64_t samples = 0;
  };
  // Of the hidden states before each layer, and after the last. Error when nothing was measured.
  std::vector<Place> result() const;

 private:
  double least_, times_;
  std::vector<Place> layers_;
};

// How alike the positions' hidden states have become (decision A22).
struct Alikeness {
  double cosine = 0;          // mean over pairs of different positions
  double effective_rank = 0;  // exp of the entropy of the normalized singular values (Roy and Vetterli 2007)
};
Alikeness alikeness(const at::Tensor& hidden);  // (positions, dim)

// Their alikeness before each layer, after the last, and after the last norm, sample by sample.
class Collapse {
 public:
  // Singular values are dear: samples beyond the first `most` are passed over.
  explicit Collapse(int64_t layers, size_t most = 16) : most_(most), places_(static_cast<size_t>(layers) + 2) {}
  void watch(Probes& probes);
  const std::vector<std::vector<Alikeness>>& result() const { return places_; }  // [place][sample]

 private:
  size_t most_;
  std::vector<std::vector<Alikeness>> places_;
};

}  // namespace lazy::sinks
