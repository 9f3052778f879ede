// Configurations composed of several parts, and the shipped models and recipes (configs/models, configs/recipes).
//
// A composed configuration is written PART+PART+... Its first part is a file. Later parts are files, which override
// earlier ones, or names of variants. A file declares a variant as tables [variants.NAME.SECTION].
//
//   configs/sink-55m.toml+lazy
//   configs/models/lazy-340m.toml+configs/recipes/15b.toml+no-elastic
//
// The tables [over_recipe.SECTION] of a file override the files that follow it. A model file uses them for settings
// that have priority over the recipe.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace lazy {

// Splits a composed configuration, such as "model.toml+recipe.toml+variant", into its parts. A text without ".toml+" is
// one part.
std::vector<std::string> config_parts(const std::string& composed);
bool is_config_file(const std::string& part);  // false: the part is the name of a variant

// Returns the name of a run of this configuration: the names of its parts, such as "lazy-340m-15b-no-elastic".
std::string config_name(const std::filesystem::path& composed);

// Returns the names of the variants that a configuration file or the files it extends declare, sorted.
std::vector<std::string> variants_of(const std::filesystem::path& file);

enum class ShippedKind { model, recipe };
// Returns the sorted names of the shipped models or recipes. The folder configs/ is searched for in the working
// directory, in the folder of the program, in the parents of that folder, and in share/lazy of each of these folders.
std::vector<std::string> shipped_names(ShippedKind kind);

// Returns the configuration of `lazy train --model MODEL --recipe RECIPE`. MODEL and RECIPE are names of shipped files
// or paths, optionally followed by variants (lazy-340m+no-elastic). The variants are applied after both files.
std::string compose_config(const std::string& model, const std::string& recipe);

// Whether the argument of a command starts with the name of a shipped model, such as lazy-340m+15b, or of a removed
// model, for which resolve_config() throws an error that names the replacement.
bool names_shipped_model(const std::string& argument);
// Returns the configuration for an argument of a command: a path, FILE+VARIANT or MODEL[+RECIPE][+VARIANT...].
std::string resolve_config(const std::string& argument);

// If `path` is a shipped configuration that has been removed, returns the end of an error message that tells what
// replaces it, such as "use lazy train --model lazy-340m --recipe 15b". Returns "" for all other paths. `extended`:
// whether `path` was found in a key `extends` of a file.
std::string replacement_of(const std::filesystem::path& path, bool extended);

}  // namespace lazy
