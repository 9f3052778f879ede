// The normalizers in float64 for one query row. A row contains only the scores of its visible keys (at least one), so
// these functions do not need masks.
#pragma once
#include <cstdint>
#include <vector>

#include "lazy/normalizers.h"

namespace lazy::kernels::reference {

struct RowParameters {
  double offset = 0;        // elastic, elastic_sink: tau or tau / (visible keys), added to every probability
  double offset_scale = 0;  // d offset / d tau
  double sink = 0;          // softmax_sink, elastic_sink: the additional score
  double sigmoid_bias = 0;  // sigmoid: added to every score
};

struct Weights {
  std::vector<double> weight;
  double lse = 0;  // log-sum-exp, or the threshold (sparsemax, entmax15)
  int64_t alive = 0;
};

struct RowGradient {
  std::vector<double> d_score;
  double d_offset = 0;  // gradient with respect to `offset`
  double d_sink = 0;
};

// Values of Forward::score_stats for one row.
struct ScoreStatistics {
  double largest = 0, entropy = 0;
};
ScoreStatistics score_statistics(const std::vector<double>& score);

// Throws std::invalid_argument for a value that kNormalizers does not list.
Weights normalize(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters);
// d_weight: gradient of the loss with respect to the weights.
RowGradient normalize_backward(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight);

}  // namespace lazy::kernels::reference
