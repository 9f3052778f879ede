// How much arithmetic a token costs, for tflops and model FLOP/s utilization (MFU).
#pragma once
#include <cstdint>

#include <c10/core/Device.h>

#include "model/config.h"

namespace lazy::train {

// Floating-point operations of forward and backward a trained token: 6 for each weight that a token is multiplied by
// (all but the embedding table, whose use is a look-up; the output head counts, tied or not), and 6 L T H d for the
// causal scores and weighted sums (12 L T H d without the causal half). What an implementation recomputes does not
// count, so this measures useful work.
double flops_per_token(const ModelConfig& config, int64_t sequence_length);

// Of a GPU the most bytes that tensors, and that the allocator, have held; of a CPU the most that the process has.
struct PeakMemory {
  double active_gib = 0, reserved_gib = 0;
};
PeakMemory peak_memory(at::Device device);

}  // namespace lazy::train
