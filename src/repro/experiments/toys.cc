#include "repro/experiments/toys.h"

#include "measure/kinds.h"
#include "repro/runner.h"

namespace lazy::repro {

Json run_recipe_experiment(ExperimentInputs run) {
  const auto study = run.settings.at("study").get<std::string>();
  if (run.settings.value("text", Json()) == Json::array()) run.settings["text"] = demo_text();
  if (study == "toy") return toy_experiment(run);
  if (study == "trigger") return trigger_experiment(run);
  if (study == "gamma") return gamma_experiment(run);
  if (study == "delta") return delta_experiment(run);
  if (study == "positions") return positions_experiment(run);
  if (study == "interventions") return interventions_experiment(run);
  return find_kind(study).run(run);
}

}  // namespace lazy::repro
