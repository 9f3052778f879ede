// Simulated low precision: rounds weights, inputs of matrix products, and cached keys and values to the nearest
// representable values during the forward pass (ops/round_to_nearest.h), to measure the loss of quality.
#pragma once
#include <string>

#include "ops/round_to_nearest.h"

namespace lazy {

struct Quantization {
  ops::Rounding weights, inputs;  // for the weights and the inputs of the linear layers
  ops::Rounding cache;            // for cached keys and values
  bool used() const { return weights.used() || inputs.used() || cache.used(); }
  // Parses a comma-separated list of w8a8, w4a4, kv8 and kv4, each optionally followed by :tensor, :token (default) or
  // :channel. Throws an Error that names `option` if the text is invalid.
  static Quantization parse(const std::string& text, const std::string& option);
};

}  // namespace lazy
