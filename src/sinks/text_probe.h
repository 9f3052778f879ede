// One text through one model: the tensors at named places (model/probes.h), as statistics that are streamed or, where
// asked for, whole; and what attention's first key gets. `lazy probe`, and behind it the Python package's probe().
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/language_model.h"
#include "sinks/interventions.h"
#include "sinks/measures.h"

namespace lazy::sinks {

struct ProbeOptions {
  // Places, with *, ? and [a-z]. Nothing to `read` means every place but scores and weights, which grow with the square
  // of the length. What is saved is read as well.
  std::vector<std::string> read, save;
  Interventions interventions;
};

struct PlaceStatistics {
  std::string name;
  std::vector<int64_t> shape;                               // after the batch
  double mean = 0, deviation = 0, lowest = 0, highest = 0;  // of the finite entries; the deviation over n
  // L2 norm and unbiased variance of each position's entries, all heads together. Empty of scores and weights.
  std::vector<double> norm, variance;
};

struct TextProbe {
  std::vector<PlaceStatistics> places;                      // in the order of the pass
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // on the CPU, fp32, without the batch
  Measures measures;                                        // empty where a layer does not attend
};

// Error names a pattern that no place of the model fits.
TextProbe probe_text(LanguageModel& model, const std::vector<int64_t>& ids, const ProbeOptions& options);
nlohmann::ordered_json to_json(const TextProbe& probe);
std::string to_table(const TextProbe& probe);

}  // namespace lazy::sinks
