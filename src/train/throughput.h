// FLOPs per token, for TFLOP/s and model FLOP/s utilization (MFU), and the training speed expected from a measurement.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "model/config.h"
#include "train/config.h"

namespace lazy::train {

// Floating-point operations per token in the forward and backward pass, for L layers, sequence length T and H heads of
// dimension d. Each weight of a matrix product contributes 6; the embedding table is excluded because it is a lookup,
// and the output head is included, tied or not. The scores and weighted sums of causal attention contribute 6 L T H d
// (12 L T H d without a causal mask). A layer with a recurrent state of H matrices (K, V) contributes 12 H K V for its
// update and read-out. Recomputation is not included, because the number measures useful work.
double flops_per_token(const ModelConfig& config, int64_t sequence_length);

struct SpeedSource {
  // JSON output of `lazy bench train --json`: an object or a list of objects
  std::optional<std::filesystem::path> measured;
  std::optional<double> mfu;  // assumed model FLOP/s utilization, between 0 and 1
  double peak_tflops = 0;     // peak throughput of one GPU in TFLOP/s
  double scaling = 1;         // scaling efficiency: (tokens/s of N GPUs) / (N x tokens/s of one GPU)
};

struct Speed {
  double tokens_per_second = 0;  // training speed of one GPU
  double mfu = 0;
  std::string source;                  // description of the source, for display
  std::optional<int64_t> peak_memory;  // bytes; present if the measurement matches this configuration exactly
};

// Predicts the training speed. A measurement with the same model, batch size and sequence length is used unchanged. Any
// other measurement is scaled under the assumption that the utilization is the same at the FLOPs per token of this
// model. Returns nullopt if `source` specifies neither a measurement nor a utilization.
std::optional<Speed> expected_speed(const TrainConfig& config, const SpeedSource& source);

}  // namespace lazy::train
