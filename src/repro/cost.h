// How long a recipe will take: arithmetic of its trainings and measurements over a rate that was measured.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "repro/recipe.h"

namespace lazy::repro {

struct Cost {
  int64_t trainings = 0;
  double tokens = 0;   // trained
  double seconds = 0;  // on `machine`
};

// The machine that a scale is meant for: "one busy CPU core" at tiny scale, else "one H200".
std::string machine(const Scale& scale);
// What the estimate rests on, in a sentence.
std::string basis(const Scale& scale);
// `configs` is a folder for the configurations.
Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs);

}  // namespace lazy::repro
