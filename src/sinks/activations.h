// Implements `lazy probe` and probe() of the Python package: one forward pass over one text. The result contains
// statistics of the activations at named probe points (model/activation_hooks.h), selected activations as whole
// tensors, and the sink measures.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/torch_forward.h"
#include "sinks/interventions.h"
#include "sinks/measures.h"

namespace lazy {
class LanguageModel;
}

namespace lazy::sinks {

struct ActivationOptions {
  // Globs (*, ?, [a-z]) of probe points. An empty `read` selects all points except attention scores and weights, whose
  // size grows quadratically with the length. Points in `save` are also read.
  std::vector<std::string> read, save;
  Interventions interventions;
};

struct ActivationStatistics {
  std::string name;
  std::vector<int64_t> shape;  // shape without the batch dimension
  // statistics of the finite entries; deviation: population standard deviation
  double mean = 0, deviation = 0, lowest = 0, highest = 0;
  // L2 norm and unbiased variance of the entries at each position, over all heads. Empty for attention scores and
  // weights.
  std::vector<double> norm, variance;
};

struct ActivationReport {
  // These functions are defined in activations.cc, where at::Tensor is a complete type.
  ActivationReport();
  ActivationReport(ActivationReport&& other) noexcept;
  ~ActivationReport();

  std::vector<ActivationStatistics> places;  // one entry per selected probe point, in the order of the forward pass
  // names and values (fp32, without the batch dimension) of the saved activations
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Measures measures;  // sink measures; empty unless every layer contains attention
};

// Runs one forward pass over `ids` and reads the selected activations. Throws an Error that names a pattern if it
// matches no probe point of the model.
ActivationReport read_activations(LanguageModel& model, const std::vector<int64_t>& ids,
                                  const ActivationOptions& options);
// Writes the tensors of `report` to a safetensors file.
void save_tensors(const std::filesystem::path& file, const ActivationReport& report);
// Returns a text table with one row per saved tensor: name, shape and dtype.
std::string saved_table(const std::filesystem::path& file, const ActivationReport& report);
nlohmann::ordered_json to_json(const ActivationReport& probe);
std::string to_table(const ActivationReport& probe);

}  // namespace lazy::sinks
