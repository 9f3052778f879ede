// Arithmetic a token, for TFLOP/s and model FLOP/s utilization (MFU), and the training speed to expect from a
// measurement.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "model/config.h"
#include "train/config.h"

namespace lazy::train {

// Floating-point operations of forward and backward pass a token: 6 for each weight of a matrix product (all but the
// embedding table, whose use is a look-up; the output head counts, tied or not), and 6 L T H d for the causal scores
// and weighted sums (12 L T H d without the causal half). A layer with a recurrent state counts 12 for each of its H K
// V numbers: update and read-out a token. Recomputation does not count, so this measures useful work.
double flops_per_token(const ModelConfig& config, int64_t sequence_length);

struct SpeedSource {
  std::optional<std::filesystem::path> measured;  // JSON of `lazy bench train --json`: an object or a list of them
  std::optional<double> mfu;                      // assumed utilization, 0 to 1
  double peak_tflops = 0;                         // of a GPU
  double scaling = 1;                             // tokens/s of N GPUs / (N x tokens/s of one)
};

struct Speed {
  double tokens_per_second = 0;  // of one GPU
  double mfu = 0;
  std::string source;                  // where it comes from, for people
  std::optional<int64_t> peak_memory;  // bytes, if measured for exactly this configuration
};

// A measurement of this configuration's model, batch and length is used as it is. Any other is scaled: the same
// utilization at this model's FLOPs a token. Empty without a source.
std::optional<Speed> expected_speed(const TrainConfig& config, const SpeedSource& source);

}  // namespace lazy::train
