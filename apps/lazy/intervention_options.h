// --set-zero, --replace, --add and --swap-positions, for every command that runs a model under interventions.
#pragma once
#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

#include "sinks/interventions.h"

namespace lazy::cli {

using Changes =
    std::vector<std::pair<std::string, std::string>>;  // option and text, in their order on the command line

void add_interventions(CLI::App& command);
// Those that were given, in their order.
std::pair<sinks::Interventions, Changes> given_interventions(const CLI::App& command);
std::string command_line(const Changes& changes);  // each with a space before it

}  // namespace lazy::cli
