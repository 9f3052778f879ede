// Kurtosis and largest entries of the residual stream by layer. The first position is reported separately, because an
// attention sink has its massive activations there.
#pragma once
#include <cstdint>
#include <vector>

#include "model/activation_hooks.h"

namespace lazy::sinks {

class ResidualStatistics {
 public:
  // The object measures the residual stream before each of `layers` layers and after the last layer.
  explicit ResidualStatistics(int64_t layers) : places_(static_cast<size_t>(layers) + 1) {}
  void attach(ActivationHooks& probes);

  // Means over positions and samples. Exception: `largest` is the maximum over positions and samples.
  struct ResidualMoments {
    // Kurtosis of the entries at a position: fourth central moment divided by the squared variance, 3 for a Gaussian.
    double kurtosis = 0;
    double rms = 0;      // root mean square of the entries at a position
    double largest = 0;  // maximum of |entry|
    double positions = 0;
  };
  struct PositionStatistics {
    ResidualMoments first, others;  // first: moments at the first position; others: at all other positions
  };
  // Throws Error if nothing was measured.
  std::vector<PositionStatistics> result() const;

 private:
  std::vector<PositionStatistics> places_;  // sums over positions and samples
};

}  // namespace lazy::sinks
