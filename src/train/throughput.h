// How much arithmetic a token costs, for tflops and model FLOP/s utilization (MFU).
#pragma once
#include <cstdint>

#include <c10/core/Device.h>

#include "model/config.h"

namespace lazy::train {

// Floating-point operations of forward and backward a trained token: 6 for each weight that a token is multiplied by
// (all but the embedding table, whose use is a look-up; the output head counts, tied or not), and 6 L T H d for the
// causal scores and weighted sums (12 L T H d without the causal half). A layer that keeps a state in place of keys
// counts 12 for each of its H K V numbers: taking in and reading out a token. What an implementation recomputes does
// not count, so this measures useful work.
double flops_per_token(const ModelConfig& config, int64_t sequence_length);

}  // namespace lazy::train
