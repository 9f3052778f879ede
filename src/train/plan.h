// `lazy train CONFIG --dry-run`: estimates memory, time, data and disk space of a run without a GPU.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/config.h"
#include "train/throughput.h"

namespace lazy::train {

struct PlanOptions {
  std::string gpu;  // display name of the GPU
  int64_t gpus = 1;
  double gpu_memory_gib = 0;
  SpeedSource speed;
};

// Returns a JSON object. For each sharding mode it contains the memory, the first part that does not fit, and a change
// of the configuration that would fit. It also contains the speed, the hours, the communication volume, the number of
// tokens of the corpora, and the size of the checkpoints.
nlohmann::ordered_json make_plan(const TrainConfig& config, const PlanOptions& options);
std::string plan_text(const nlohmann::ordered_json& plan);

}  // namespace lazy::train
