// `lazy probe` and the Python package's probe(): one pass of one text, with statistics of the activations at named
// probe points (model/activation_hooks.h), selected activations as whole tensors, and the sink measures.
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
  // Globs (*, ?, [a-z]) of probe points. Empty `read` means all but scores and weights, which grow with the square of
  // the length. Points in `save` are read as well.
  std::vector<std::string> read, save;
  Interventions interventions;
};

struct ActivationStatistics {
  std::string name;
  std::vector<int64_t> shape;                               // after the batch
  double mean = 0, deviation = 0, lowest = 0, highest = 0;  // of the finite entries; population deviation
  // L2 norm and unbiased variance of each position's entries, all heads together. Empty for scores and weights.
  std::vector<double> norm, variance;
};

struct ActivationReport {
  // Defined in activations.cc, where at::Tensor is a complete type.
  ActivationReport();
  ActivationReport(ActivationReport&& other) noexcept;
  ~ActivationReport();

  std::vector<ActivationStatistics> places;                 // in the order of the pass
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // on the CPU, fp32, without the batch
  Measures measures;                                        // empty unless every layer is attention
};

// Error names a pattern that matches no probe point of the model.
ActivationReport read_activations(LanguageModel& model, const std::vector<int64_t>& ids,
                                  const ActivationOptions& options);
// Writes the tensors of `report` to a safetensors file.
void save_tensors(const std::filesystem::path& file, const ActivationReport& report);
// A row for each tensor in `file`: its name, shape and dtype.
std::string saved_table(const std::filesystem::path& file, const ActivationReport& report);
nlohmann::ordered_json to_json(const ActivationReport& probe);
std::string to_table(const ActivationReport& probe);

}  // namespace lazy::sinks
