// Outliers of the residual stream and of the inputs of all matrix products, by layer. They determine the value range
// that a low-precision format has to represent. The activations of a probe point are read only once and in parts; only
// sums by position and by channel are stored.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/activation_hooks.h"

namespace lazy::sinks {

// An entry larger than this multiple of the median is a spike.
inline constexpr double kSpike = 100;
// The median is computed over evenly spaced positions of a sample with at most this number of entries.
inline constexpr int64_t kMedianEntries = int64_t{1} << 20;

class Outliers {
 public:
  explicit Outliers(int64_t layers) : layers_(layers) {}
  void attach(ActivationHooks& probes);

  // Statistics of one layer at one probe point (named activation). Values are means over samples unless stated
  // otherwise.
  struct Layer {
    // Kurtosis over the channels at one position: fourth central moment divided by the squared variance, 3 for a
    // Gaussian. kurtosis: mean over all positions except the first. kurtosis_first: value at the first position.
    double kurtosis = 0, kurtosis_first = 0;
    double largest = 0;  // maximum of |entry| over all samples
    double median = 0;   // median of |entry|
    double ratio = 0;    // largest entry divided by the median of the sample
    // A spike is an entry larger than kSpike times the median. spikes: number of positions with a spike. spikes_first:
    // fraction of samples whose first position has a spike.
    double spikes = 0, spikes_first = 0;
    int64_t dimension = 0;  // the channel that most often has the largest entry of a position
    // Fraction of positions, without first positions, whose largest entry is in the channel `dimension`.
    double dimension_share = 0;
    // Up to kChannels channels with the largest root mean square over all positions. The values are relative to the
    // median channel.
    std::vector<std::pair<int64_t, double>> channels;
  };
  static constexpr int64_t kChannels = 4;
  // Returns the results by probe point in the order of the forward pass: residual, attention.input (or mixer.input),
  // attention.heads, mlp.input, mlp.inner, and final.hidden, which the output head reads. `residual` has one additional
  // entry for the stream after the last layer. Throws Error if nothing was measured.
  std::vector<std::pair<std::string, std::vector<Layer>>> result() const;

 private:
  struct LayerSums {
    Layer layer;
    double positions = 0;  // number of positions, except the first position of each sample
    int64_t samples = 0;
    // for each channel: sum of squares, and number of positions whose largest entry is in this channel
    at::Tensor squares, winners;
  };
  void add(const std::string& name, const at::Tensor& activations);
  static void add_sample(LayerSums& sums, const at::Tensor& x);  // x: (positions, channels)

  int64_t layers_;
  std::map<std::string, std::vector<LayerSums>> places_;
  std::vector<std::string> order_;
};

}  // namespace lazy::sinks
