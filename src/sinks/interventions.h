// Changes to a model under study, named on the command line, that compose: weights by their names in checkpoints (of
// the model's own family, or Llama's), activations by their places (model/probes.h), all with * and an index as in
// Python.
//
//   set_zero        NAME[INDEX]
//   replace, add    NAME[INDEX]=VALUE
//   swap_positions  NAME=I,J          positions of an activation, rows of a weight
//
// VALUE is a sum of terms with spaces between them: "epe[1] - epe[0]", "0.5*wpe.weight[3]", "7". A term is a number, a
// weight, an activation that comes before in the same pass, FILE.safetensors:NAME, epe (the effective positional
// encodings, sinks/positions.h) or @, the tensor that is changed. Positions and layers count from 0; an activation's
// index begins after the batch.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/language_model.h"
#include "model/probes.h"
#include "sinks/tensor_index.h"
#include "sinks/weight_edits.h"

namespace lazy::sinks {

class Interventions {
 public:
  // In the order in which they are carried out.
  Interventions& set_zero(const std::string& text);
  Interventions& replace(const std::string& text);
  Interventions& add(const std::string& text);
  Interventions& swap_positions(const std::string& text);
  bool empty() const { return changes_.empty(); }

 private:
  friend class Applied;
  enum class Kind { replace, add, swap };
  struct Term {
    double factor = 1;
    std::string name;  // empty: the factor alone
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

// A model under its interventions while this lives: weights are put back at its end; passes take probes(), or a copy of
// them. Error names the intervention whose name is nowhere in the model, whose index or value does not fit.
class Applied {
 public:
  Applied(LanguageModel& model, const Interventions& interventions);
  Applied(const Applied&) = delete;
  Applied& operator=(const Applied&) = delete;
  const Probes& probes() const { return probes_; }
  // Some value is an activation of the same pass: passes must not be mingled.
  bool reads_activations() const { return !seen_.empty(); }

 private:
  using Change = Interventions::Change;
  using Term = Interventions::Term;
  void change_activations(const Change& change, const std::vector<std::string>& names);
  at::Tensor changed(const Change& change, const at::Tensor& tensor, int64_t skip);
  at::Tensor value_of(const Term& term, const Change& change, const at::Tensor& own, int64_t skip);
  at::Tensor look_up(const std::string& name, const Change& change);
  // A weight as a checkpoint has it, and the model's tensors that it is made of.
  struct Weight {
    StoredTensor stored;
    std::vector<at::Tensor> parts;
    at::Tensor value() const;
  };
  std::vector<Weight> weights_like(const std::string& glob) const;
  void need_weights(const Change& change) const;  // Error where they are not in memory

  LanguageModel& model_;
  Probes probes_;
  WeightEdits edits_;
  std::map<std::string, at::Tensor> seen_;       // activations of this pass that values read
  std::map<std::string, at::Tensor> constants_;  // of files, and epe
};

}  // namespace lazy::sinks
