// A budget for activations in functions instead of bytes.
#pragma once
#include "model/blocks/activation_budget.h"

namespace lazy::testing {

// A function that is measured takes a byte, because the second of two readings is one more.
struct CountedBudget {
  int64_t readings = 0;
  DeviceMemory memory;
  ActivationBudget budget{MemoryGauge{.memory = [this] { return memory; }, .allocated = [this] { return readings++; }}};
  int64_t measured() const { return readings / 2; }
};

}  // namespace lazy::testing
