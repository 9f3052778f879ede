// Outliers of the residual stream and of the inputs of every product, by layer: what low precision has to represent.
// Streamed: a place's activations are read once, in parts, and only numbers by position and by channel are kept.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/activation_hooks.h"

namespace lazy::sinks {

// Entries more than so many times the median are spikes.
inline constexpr double kSpike = 100;
// Positions of a sample whose entries the median is taken of, evenly spread, are at most as many as have so many.
inline constexpr int64_t kMedianEntries = int64_t{1} << 20;

class Outliers {
 public:
  explicit Outliers(int64_t layers) : layers_(layers) {}
  void attach(ActivationHooks& probes);

  // Of one layer at one place. Means over samples, unless said otherwise.
  struct Layer {
    // Of a position's channels: fourth central moment over the squared variance, 3 for a Gaussian; mean over positions.
    double kurtosis = 0, kurtosis_first = 0;  // of all positions but the first; of the first
    double largest = 0;                       // |entry|, over all samples
    double median = 0;                        // of |entry|
    double ratio = 0;                         // largest over median of a sample
    double spikes = 0, spikes_first = 0;      // positions with an entry beyond kSpike medians; share of the first ones
    int64_t dimension = 0;                    // the channel that holds the largest entry of most positions
    double dimension_share = 0;               // of positions, the first ones apart
    // Channels of the largest root mean square over all positions, over the median channel's, at most kChannels.
    std::vector<std::pair<int64_t, double>> channels;
  };
  static constexpr int64_t kChannels = 4;
  // By place, in the order of a pass: residual, attention.input (or mixer.input), attention.heads, mlp.input,
  // mlp.inner, final.hidden, which the head reads. Residual has one more, after the last layer. Error when nothing was
  // measured.
  std::vector<std::pair<std::string, std::vector<Layer>>> result() const;

 private:
  struct Sums {
    Layer layer;
    double positions = 0;  // without the first ones
    int64_t samples = 0;
    at::Tensor squares, winners;  // by channel: sum of squares, positions whose largest entry it holds
  };
  void add(const std::string& name, const at::Tensor& activations);
  static void add_sample(Sums& sums, const at::Tensor& x);  // (positions, channels)

  int64_t layers_;
  std::map<std::string, std::vector<Sums>> places_;
  std::vector<std::string> order_;
};

}  // namespace lazy::sinks
