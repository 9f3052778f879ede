// An activation budget that counts functions instead of bytes.
#pragma once
#include "model/blocks/activation_budget.h"

namespace lazy::testing {

// Each function appears to save one byte of activations, because each reading of the allocated memory is one byte
// larger than the previous reading.
struct CountedBudget {
  int64_t readings = 0;
  DeviceMemory memory;
  ActivationBudget budget{MemoryGauge{.memory = [this] { return memory; }, .allocated = [this] { return readings++; }}};
  int64_t measured() const { return readings / 2; }
};

}  // namespace lazy::testing
