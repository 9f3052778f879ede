// Interventions on a model: edits of weights and of activations, described by text as on the command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sinks/tensor_index.h"

namespace lazy::sinks {

// A list of composable interventions, each given as text. Targets are weights, by their names in checkpoints (of the
// model's own family or Llama's), and activations, by their probe points (model/activation_hooks.h). Names may contain
// * and carry an index as in Python.
//
//   set_zero        NAME[INDEX]
//   replace, add    NAME[INDEX]=VALUE
//   swap_positions  NAME=I,J          positions of an activation, rows of a weight
//
// VALUE is a sum of terms separated by spaces: "epe[1] - epe[0]", "0.5*wpe.weight[3]", "7". A term is a number, a
// weight, an activation from earlier in the same pass, FILE.safetensors:NAME, epe (the effective positional encodings,
// sinks/positional_signal.h) or @, the target itself. Positions and layers are 0-based; the index of an activation
// starts after the batch dimension.
class Interventions {
 public:
  // Interventions are applied in the order of these calls.
  Interventions& set_zero(const std::string& text);
  Interventions& replace(const std::string& text);
  Interventions& add(const std::string& text);
  Interventions& swap_positions(const std::string& text);
  bool empty() const { return changes_.empty(); }

 private:
  friend class ScopedInterventions;
  enum class Kind { replace, add, swap };
  struct Term {
    double factor = 1;
    std::string name;  // empty: the term is a number
    TensorIndex index;
  };
  struct Change {
    Kind kind;
    std::string text;  // for messages: "--add layers.1.residual[0]=..."
    NamedPart target;
    std::vector<Term> value;
    int64_t first = 0, second = 0;  // of a swap
  };
  Change parse(Kind kind, const char* option, const std::string& text);
  std::vector<Change> changes_;
};

}  // namespace lazy::sinks
