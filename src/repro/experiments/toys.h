// Experiments on toy models, which they train, and on GPT-2, in addition to the experiments of measure/experiment.h.
#pragma once
#include "measure/experiment.h"
#include "repro/plan.h"

namespace lazy::repro {

// toy.cc, trigger.cc: a one-layer model trained on synthetic tokens, and an attention head trained on synthetic
// vectors.
Json toy_experiment(const ExperimentInputs& run);
Json trigger_experiment(const ExperimentInputs& run);
// gpt2.cc: causes of the attention sink in models with learned positions and query biases.
Json gamma_experiment(const ExperimentInputs& run);
Json delta_experiment(const ExperimentInputs& run);
Json positions_experiment(const ExperimentInputs& run);
Json interventions_experiment(const ExperimentInputs& run);
// Runs one of these experiments or an experiment of measure/experiment.h, according to settings["study"].
Json run_recipe_experiment(ExperimentInputs run);

}  // namespace lazy::repro
