// Estimates how long a recipe takes: the computed work of its trainings and measurements divided by measured speeds.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "repro/recipe.h"
#include "train/throughput.h"

namespace lazy::repro {

struct ModelCost {
  std::string model;                   // name without the seed
  int64_t trainings = 0;               // including trials
  double tokens = 0;                   // training tokens
  double tokens_per_second = 0;        // in training
  double training = 0, measuring = 0;  // seconds on `machine`
};

struct Cost {
  int64_t trainings = 0;
  double tokens = 0;              // training tokens
  double seconds = 0;             // on `machine`
  std::vector<ModelCost> models;  // in the order of the plan; steps without a training are not included
};

// The machine that a scale is meant for: "one busy CPU core" at tiny scale, else "one H200".
std::string machine(const Scale& scale);
// One sentence that says what the estimate is based on.
std::string basis(const Scale& scale);
// Cost of the given steps, which must include the trainings of all measured models, and cost of all steps of a recipe.
// `configs` is a folder that the configurations are written to.
Cost cost(const std::vector<Step>& plan, const Conditions& conditions, const std::filesystem::path& configs);
Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs);

// Measured utilization of an H200 in training: fraction of its 989 TFLOP/s in bf16, from 0 to 1. `large` selects the
// value for models of at least 340M parameters at context 4096; otherwise the value for 55M parameters at 512.
double gpu_utilization(const ModelConfig& model, bool large);
// The training speed on the machine that the scale is meant for.
train::SpeedSource speed_source(const Scale& scale, const ModelConfig& model);

}  // namespace lazy::repro
