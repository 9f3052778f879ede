// How long a recipe takes: the arithmetic of its trainings and measurements divided by measured rates.
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
  std::string model;                   // without its seed
  int64_t trainings = 0;               // trials too
  double tokens = 0;                   // trained
  double tokens_per_second = 0;        // of training
  double training = 0, measuring = 0;  // seconds on `machine`
};

struct Cost {
  int64_t trainings = 0;
  double tokens = 0;              // trained
  double seconds = 0;             // on `machine`
  std::vector<ModelCost> models;  // in the plan's order; steps without a training are not among them
};

// The machine that a scale is meant for: "one busy CPU core" at tiny scale, else "one H200".
std::string machine(const Scale& scale);
// The basis of the estimate, in a sentence.
std::string basis(const Scale& scale);
// Of these steps, whose trainings are among them, and of all steps of a recipe. `configs` is a folder for the
// configurations.
Cost cost(const std::vector<Step>& plan, const Conditions& conditions, const std::filesystem::path& configs);
Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs);

// Measured utilization of an H200 in training: share of 989 TFLOP/s in bf16, 0 to 1. large: a model of 340M or more at
// context 4096, else one of 55M at 512.
double gpu_utilization(const ModelConfig& model, bool large);
// The speed of a scale's trainings on its machine.
train::SpeedSource speed_source(const Scale& scale, const ModelConfig& model);

}  // namespace lazy::repro
