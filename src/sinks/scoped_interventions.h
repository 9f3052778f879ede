// Interventions (sinks/interventions.h) and weight edits that apply to a model for the lifetime of an object.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/activation_hooks.h"
#include "model/families/families.h"
#include "model/language_model.h"
#include "sinks/interventions.h"

namespace lazy::sinks {

// Weight edits that are undone when the object is destroyed.
class ScopedWeightEdits {
 public:
  ScopedWeightEdits() = default;
  ~ScopedWeightEdits();
  ScopedWeightEdits(const ScopedWeightEdits&) = delete;
  ScopedWeightEdits& operator=(const ScopedWeightEdits&) = delete;
  // Writes in place, so the model that owns the tensor changes.
  void write(const at::Tensor& weight, const at::Tensor& value);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // edited weights with their previous values
};

// Applies interventions to a model for the lifetime of this object. Weights are edited immediately and restored by the
// destructor. Activations are replaced in passes that use probes() or a copy of it. Throws Error if the target of an
// intervention does not exist in the model or if its index or value does not fit. Errors name the intervention.
class ScopedInterventions {
 public:
  ScopedInterventions(LanguageModel& model, const Interventions& interventions);
  ScopedInterventions(const ScopedInterventions&) = delete;
  ScopedInterventions& operator=(const ScopedInterventions&) = delete;
  const ActivationHooks& probes() const { return probes_; }
  // Returns whether an intervention uses an activation of the same pass as a value. In this case, each pass must
  // process only one batch.
  bool reads_activations() const { return !seen_.empty(); }

 private:
  using Change = Interventions::Change;
  using Term = Interventions::Term;
  void change_activations(const Change& change, const std::vector<std::string>& names);
  at::Tensor changed(const Change& change, const at::Tensor& tensor, int64_t skip);
  at::Tensor value_of(const Term& term, const Change& change, const at::Tensor& own, int64_t skip);
  at::Tensor look_up(const std::string& name, const Change& change);
  // A weight as it is stored in checkpoints, and the tensors of the model that contain it.
  struct EditedWeight {
    StoredTensor stored;
    std::vector<at::Tensor> parts;
    at::Tensor value() const;
  };
  std::vector<EditedWeight> weights_like(const std::string& glob) const;
  void require_resident_weights(const Change& change) const;

  LanguageModel& model_;
  ActivationHooks probes_;
  ScopedWeightEdits edits_;
  std::map<std::string, at::Tensor> seen_;       // values of the activations that terms refer to, in the current pass
  std::map<std::string, at::Tensor> constants_;  // tensors from files, and the effective positional encodings (epe)
};

}  // namespace lazy::sinks
