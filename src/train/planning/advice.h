// What would fit on a GPU where a configuration does not.
#pragma once
#include <string>

#include "train/config.h"
#include "train/planning/memory.h"

namespace lazy::train {

// The least change of `config` (of all ranks) that needs at most `capacity` bytes, one line for people. The tokens of a
// step stay what they are.
std::string advice(const TrainConfig& config, MemoryQuestion question, double capacity);

}  // namespace lazy::train
