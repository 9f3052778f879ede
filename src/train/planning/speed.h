// Tokens a second to expect: from a measurement of `lazy bench train --json`, or from a utilization that the user
// assumes.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "train/config.h"

namespace lazy::train {

struct SpeedSource {
  std::optional<std::filesystem::path> measured;  // an object or a list of them, with the keys of lazy bench train
  std::optional<double> mfu;                      // share of the peak, 0 to 1
  double peak_tflops = 0;                         // of a GPU
  double scaling = 1;                             // tokens/s of many GPUs over as many times one's
};

struct Speed {
  double tokens_per_second = 0;  // of one GPU
  double mfu = 0;
  std::string source;                  // what it rests on, for people
  std::optional<int64_t> peak_memory;  // bytes measured at exactly this shape
};

// A measurement of this configuration's model, batch and length counts as it is. Any other is scaled: the same
// utilization at this model's arithmetic. Nothing without a source.
std::optional<Speed> expected_speed(const TrainConfig& config, const SpeedSource& source);

}  // namespace lazy::train
