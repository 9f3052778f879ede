// The six normalizers, one query row at a time, in float64: SPEC-level definitions that the fast kernels are tested
// against. A row holds the scores of its visible keys only (at least one); masks never reach this file.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lazy/attention.h"

namespace lazy::kernels::reference {

struct RowParameters {
  double offset = 0;        // elastic: what is added to every probability, tau / c or tau
  double offset_scale = 0;  // d offset / d tau
  double sink = 0;          // softmax_sink: the extra score
  double sigmoid_bias = 0;  // sigmoid: beta
};

struct Weights {
  std::vector<double> weight;
  double lse = 0;  // log-sum-exp, or the threshold (sparsemax, entmax15)
  int64_t alive = 0;
};

struct RowGradient {
  std::vector<double> d_score;
  double d_offset = 0;  // elastic, with respect to `offset`
  double d_sink = 0;
};

Weights normalize(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters);
// d_weight: gradient of the loss with respect to the weights.
RowGradient normalize_backward(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight);

// What a row with a NaN is, where sorting it would lose the NaN.
inline bool has_nan(const std::vector<double>& score) {
  return std::any_of(score.begin(), score.end(), [](double s) { return std::isnan(s); });
}
inline Weights nan_row(size_t size) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {std::vector<double>(size, nan), nan, static_cast<int64_t>(size)};
}

// The two of each normalizer, in a file of its name.
#define LAZY_DECLARE_NORMALIZER(name)                                                            \
  Weights name(const std::vector<double>& score, const RowParameters& parameters);               \
  RowGradient name##_backward(const std::vector<double>& score, const RowParameters& parameters, \
                              const std::vector<double>& d_weight);
LAZY_DECLARE_NORMALIZER(softmax)
LAZY_DECLARE_NORMALIZER(elastic)
LAZY_DECLARE_NORMALIZER(sparsemax)
LAZY_DECLARE_NORMALIZER(entmax15)
LAZY_DECLARE_NORMALIZER(sigmoid)
LAZY_DECLARE_NORMALIZER(softmax_sink)
#undef LAZY_DECLARE_NORMALIZER

}  // namespace lazy::kernels::reference
