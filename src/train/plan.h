// `lazy train CONFIG --dry-run`: memory, time, data and disk space that a run will need, computed without a GPU.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/config.h"
#include "train/throughput.h"

namespace lazy::train {

struct PlanOptions {
  std::string gpu;  // its name, for people
  int64_t gpus = 1;
  double gpu_memory_gib = 0;
  SpeedSource speed;
};

// Memory under each sharding mode, the first part that does not fit and a change that would; speed, hours and
// communication; tokens of the corpora; size of the checkpoints.
nlohmann::ordered_json make_plan(const TrainConfig& config, const PlanOptions& options);
std::string plan_text(const nlohmann::ordered_json& plan);

}  // namespace lazy::train
