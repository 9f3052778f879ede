// Run folders with plausible synthetic numbers, for tests of the report that need no trained model.
#pragma once
#include <filesystem>
#include <string>

#include "report/run.h"

namespace lazy::report {

struct SyntheticRun {
  std::string name = "lazy";
  bool lazy = true;  // false: a softmax run
  int layers = 4, heads = 4, window = 256, map_tokens = 24;
  uint64_t seed = 1;
};

// Writes every file of docs/reference/run-directory.md that the report reads, except the model folder.
std::filesystem::path write_synthetic_run(const std::filesystem::path& parent, const SyntheticRun& what);
LearnedParameters synthetic_learned(const SyntheticRun& what);

}  // namespace lazy::report
