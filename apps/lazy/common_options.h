// Options that several subcommands have in common.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "model/model_options.h"
#include "sinks/interventions.h"

namespace lazy::cli {

// --positions, --rope-base, --cache and --weights, for commands that load a model folder.
void add_model_options(Command command, ModelOptions& options);

// --set-zero, --replace, --add and --swap-positions, for commands that run a model under interventions.
void add_interventions(Command command);
struct GivenInterventions {
  sinks::Interventions interventions;
  std::vector<std::pair<std::string, std::string>> options;  // name and value, in command line order
  std::string line() const;                                  // each option with a space before it
};
GivenInterventions given_interventions(Command command);

}  // namespace lazy::cli
