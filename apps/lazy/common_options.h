// Functions that add options which several subcommands have, and that apply these options.
#pragma once
#include <string>

#include "command.h"
#include "generate/sampler.h"
#include "model/model_options.h"
#include "sinks/interventions.h"

namespace lazy::cli {

// Adds --positions, --rope-base, --cache and --weights, for commands that load a model folder.
void add_model_options(CLI::App& command, ModelOptions& options);

// Adds --device and --dtype, for commands that generate text; see model/device.h.
void add_placement_options(CLI::App& command, std::string& device, std::string& dtype);
// Moves the model to the first GPU if `device` is "cuda". If `dtype` is "fp32" or "bf16", only the weights in this
// precision are kept in memory.
void place_model(LanguageModel& model, const std::string& device, const std::string& dtype);

// Throws an Error with both sizes if a cache of `gib` GiB (--cache-gib) is larger than the memory of the device.
void check_cache_size(const char* operation, double gib, const std::string& device);

// Adds --temperature, --top-k, --top-p, --repetition-penalty and --seed. seeds: help text that says which seed each
// text uses.
inline const SamplingOptions kDefaultSampling{.temperature = 0.8, .top_p = 0.95, .seed = 42};
void add_sampling_options(CLI::App& command, SamplingOptions& sampling, const std::string& seeds);

// Logs a warning if `length` tokens exceed the context length of the model in folder `model`.
void warn_beyond_training(const char* operation, const std::string& model, const ModelConfig& config, int64_t length);

// Adds --set-zero, --replace, --add and --swap-positions, for commands that run a model with interventions.
void add_interventions(CLI::App& command);
// returns the interventions in the order of the command line
sinks::Interventions given_interventions(const CLI::App& command);

}  // namespace lazy::cli
