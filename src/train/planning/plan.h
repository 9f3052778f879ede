// `lazy train CONFIG --dry-run`: what a run will need, before anything is allocated.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/config.h"
#include "train/planning/speed.h"

namespace lazy::train {

struct PlanOptions {
  std::string gpu;  // its name, for people
  int64_t gpus = 1;
  double gpu_memory_gib = 0;
  SpeedSource speed;
};

// Memory of each way to divide the training state, the first part that does not fit and what would; speed, hours and
// traffic; what the corpora hold of the tokens wanted; checkpoints.
nlohmann::ordered_json make_plan(const TrainConfig& config, const PlanOptions& options);
std::string plan_text(const nlohmann::ordered_json& plan);

}  // namespace lazy::train
