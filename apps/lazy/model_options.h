// The options that every command which opens a model folder has in common.
#pragma once
#include <CLI/CLI.hpp>

#include "model/model_options.h"

namespace lazy::cli {

void add_model_options(CLI::App& command, ModelOptions& options);

}  // namespace lazy::cli
