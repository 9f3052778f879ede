// Outliers of the residual stream: its kurtosis and largest entries by layer, apart for the first position, where a
// sink's massive activations are.
#pragma once
#include <cstdint>
#include <vector>

#include "model/activation_hooks.h"

namespace lazy::sinks {

class ResidualStatistics {
 public:
  // The stream before each layer and after the last.
  explicit ResidualStatistics(int64_t layers) : places_(static_cast<size_t>(layers) + 1) {}
  void attach(ActivationHooks& probes);

  // Means over positions and samples; `largest` is the maximum over them.
  struct Part {
    double kurtosis = 0;  // of a position's entries: fourth central moment over the squared variance, 3 for a Gaussian
    double rms = 0;       // root mean square of a position's entries
    double largest = 0;   // |entry|
    double positions = 0;
  };
  struct Place {
    Part first, others;  // the first position, all others
  };
  // Error when nothing was measured.
  std::vector<Place> result() const;

 private:
  std::vector<Place> places_;  // sums
};

}  // namespace lazy::sinks
