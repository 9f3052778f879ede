// What a model loses in low precision: weights, inputs of products, cached keys and values, rounded to the nearest
// values in the computing pass (ops/round_to_nearest.h).
#pragma once
#include <string>

#include "ops/round_to_nearest.h"

namespace lazy {

struct Quantization {
  ops::Rounding weights, inputs;  // of the layers' linear parts
  ops::Rounding cache;
  bool used() const { return weights.used() || inputs.used() || cache.used(); }
  // Parses w8a8, w4a4, kv8 and kv4, each with an optional :tensor, :token (default) or :channel, separated by commas.
  // Error naming `option`.
  static Quantization parse(const std::string& text, const std::string& option);
};

}  // namespace lazy
