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
  std::string model;                   // name of the model without the seed
  int64_t trainings = 0;               // number of trainings, including trials
  double tokens = 0;                   // number of training tokens
  double tokens_per_second = 0;        // speed in training
  double training = 0, measuring = 0;  // seconds on `machine`
};

struct Cost {
  int64_t trainings = 0;
  double tokens = 0;              // number of training tokens
  double seconds = 0;             // on `machine`
  std::vector<ModelCost> models;  // in the order of the plan; a step without a training is not included
};

// Returns the machine for which a scale (model and data size) is intended: "one busy CPU core" at tiny scale, otherwise
// "one H200".
std::string machine(const Scale& scale);
// One sentence that says what the estimate is based on.
std::string basis(const Scale& scale);
// Returns the cost of the given steps, which must include the trainings of all measured models; the second function
// returns the cost of all steps of a recipe. The configurations are written to the folder `configs`.
Cost cost(const std::vector<Step>& plan, const Conditions& conditions, const std::filesystem::path& configs);
Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs);

// Measured utilization of an H200 in training: fraction of its 989 TFLOP/s in bf16, from 0 to 1. `large` selects the
// value for models of at least 340M parameters at context 4096; otherwise the value for 55M parameters at 512.
double gpu_utilization(const ModelConfig& model, bool large);
// Returns the training speed on the machine for which the scale is intended.
train::SpeedSource speed_source(const Scale& scale, const ModelConfig& model);

}  // namespace lazy::repro
