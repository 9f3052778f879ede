// Interventions on a model: edits of weights and activations, described in the syntax of the command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sinks/tensor_index.h"

namespace lazy::sinks {

// A list of composable interventions, each given as text. A target is either a weight, by its name in the checkpoints
// of the model family or of Llama, or an activation, by its probe point (model/activation_hooks.h). A name may contain
// * and may be followed by a Python-style index.
//
//   set_zero        NAME[INDEX]
//   replace, add    NAME[INDEX]=VALUE
//   swap_positions  NAME=I,J          swaps positions of an activation or rows of a weight
//
// VALUE is a sum of terms separated by spaces: "epe[1] - epe[0]", "0.5*wpe.weight[3]", "7". A term is a number, a
// weight, an activation from earlier in the same pass, FILE.safetensors:NAME, epe (the effective positional encodings,
// sinks/effective_positions.h), or @, which denotes the target itself. Positions and layers are 0-based. The index of
// an activation starts after the batch dimension.
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
    std::string name;  // name of a weight or activation; empty if the term is a number
    TensorIndex index;
  };
  struct Change {
    Kind kind;
    std::string text;  // for messages, for example "--add layers.1.residual[0]=..."
    NamedPart target;
    std::vector<Term> value;
    int64_t first = 0, second = 0;  // the two positions of swap_positions
  };
  Change parse(Kind kind, const char* option, const std::string& text);
  std::vector<Change> changes_;
};

}  // namespace lazy::sinks
