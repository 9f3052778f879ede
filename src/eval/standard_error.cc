#include "eval/standard_error.h"

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "eval/python_random.h"

namespace lazy::eval {
double mean_stderr(const std::vector<double>& values) {
  return std::sqrt(variance_of(values)) / std::sqrt(static_cast<double>(values.size()));
}

double perplexity_stderr(const std::vector<double>& values, int64_t resamples) {
  const int64_t chunk = std::min<int64_t>(1000, resamples), chunks = resamples / chunk;
  const auto n = static_cast<double>(values.size());
  std::vector<double> replicates(static_cast<size_t>(chunks * chunk));
#pragma omp parallel for schedule(dynamic)
  for (int64_t c = 0; c < chunks; ++c) {
    PythonRandom random(static_cast<uint64_t>(c));
    for (int64_t r = 0; r < chunk; ++r) {
      double sum = 0;
      for (size_t i = 0; i < values.size(); ++i) sum += values[static_cast<size_t>(random.random() * n)];
      replicates[static_cast<size_t>(c * chunk + r)] = std::exp(-sum / n);
    }
  }
  return std::sqrt(variance_of(replicates));
}

}  // namespace lazy::eval
