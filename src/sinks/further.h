// The measures beyond those of the kernel's statistics that `lazy sinks --measures` asks for, in one pass with them.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sinks/state_measures.h"
#include "sinks/weight_measures.h"

namespace lazy::sinks {

// weights: Sink_k^eps and alpha_k of every key, entropy (short samples); vectors: norms and variances by position
// (short samples); massive: massive activations; collapse: alikeness of hidden states by layer.
inline const std::vector<std::string> kFurtherMeasures{"weights", "vectors", "massive", "collapse"};

struct FurtherMeasures {
  std::optional<WeightMeasures::Result> weights;
  std::map<std::string, VectorStatistics::Result> vectors;  // by place
  std::vector<MassiveActivations::Place> massive;
  std::vector<std::vector<Alikeness>> collapse;
};
nlohmann::ordered_json to_json(const FurtherMeasures& further);
std::string to_table(const FurtherMeasures& further);  // empty when nothing was measured

class FurtherMeasuring {
 public:
  // Error names a measure that there is not. `model` must outlive this.
  FurtherMeasuring(const LanguageModel& model, const std::vector<std::string>& measures, double threshold);
  // Those measured on samples of Sink_k's length, or the others. `matrices`: see WeightMeasures.
  void watch(Probes& probes, bool short_samples, bool matrices);
  FurtherMeasures result() const;

 private:
  std::optional<WeightMeasures> weights_;
  std::vector<VectorStatistics> vectors_;
  std::optional<MassiveActivations> massive_;
  std::optional<Collapse> collapse_;
};

// The entries of a tensor as nested lists.
nlohmann::ordered_json nested(const at::Tensor& tensor);

}  // namespace lazy::sinks
