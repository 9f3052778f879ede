#include "core/config_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/known_names.h"
#include "core/text.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".toml";
// Earlier versions had folders such as configs/compare-55m/, whose models extended the file recipe.toml.
constexpr std::string_view kSharedFile = "recipe";
// Number of folders above the program in which configs/ is searched for. The program is in build/ or build/tests/.
constexpr int kMaxParents = 3;

const char* folder_of(ShippedKind kind) { return kind == ShippedKind::model ? "models" : "recipes"; }

// Returns the folder configs/ that contains the shipped models and recipes, or "" if it is not found.
fs::path shipped_folder() {
  std::error_code error;
  std::vector<fs::path> candidates{"configs"};
  fs::path folder = fs::read_symlink("/proc/self/exe", error);
  for (int level = 0; !error && level < kMaxParents; ++level) {
    folder = folder.parent_path();
    candidates.push_back(folder / "configs");
    candidates.push_back(folder / "share" / "lazy" / "configs");  // `make install`
  }
  for (const fs::path& candidate : candidates) {
    if (fs::is_directory(candidate / "models", error) && fs::is_directory(candidate / "recipes", error))
      return candidate;
  }
  return {};
}

// A name of a model: a shipped file, or a removed file that a variant of a shipped file replaces.
struct ModelName {
  std::string name, file, variant;  // variant: "" for a shipped file
};

// Returns all names of models. Example of a removed file: sigmoid-340m, which is now transformer-340m+sigmoid.
std::vector<ModelName> model_names() {
  std::vector<ModelName> names;
  for (const std::string& model : shipped_names(ShippedKind::model)) {
    names.push_back({model, model, ""});
    const std::string size = model.substr(std::min(model.size(), model.rfind('-')));
    for (const std::string& variant : variants_of(shipped_folder() / "models" / (model + std::string(kExtension))))
      names.push_back({variant + size, model, variant});
  }
  return names;
}

// Returns the model and variant that replace a removed model, such as "transformer-340m+sigmoid"; "" for other names.
std::string replacement_of_model(const std::string& name) {
  for (const ModelName& model : model_names()) {
    if (model.name == name && !model.variant.empty()) return model.file + "+" + model.variant;
  }
  return "";
}

// Returns the file of a model or recipe that is given as a name or a path. `argument` is the name of the command-line
// argument for messages, such as --model.
std::string file_of(ShippedKind kind, const std::string& part, const std::string& argument) {
  if (is_config_file(part)) return part;
  const std::vector<std::string> names = shipped_names(kind);
  if (names.empty()) {
    fail("config", "{}: expected a file, because the folder configs/{} was not found; found '{}'", argument,
         folder_of(kind), part);
  }
  if (const std::string use = replacement_of_model(part); kind == ShippedKind::model && !use.empty()) {
    fail("config", "{}: {} is now {}; add --set training.output=DIR to continue a run of the former name", argument,
         part, use);
  }
  if (!contains(names, part))
    fail_unknown("config", argument, part, names,
                 kind == ShippedKind::model ? "a file or a model" : "a file or a recipe");
  return shipped_folder() / folder_of(kind) / (part + std::string(kExtension));
}

// Splits an argument NAME[+VARIANT...] or FILE[+VARIANT...] at "+" into its parts.
std::vector<std::string> named_parts(const std::string& text) {
  return text.find(kExtension) == std::string::npos && !fs::exists(text) ? split(text, '+') : config_parts(text);
}

std::string join(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, "+")); }

// Splits a stem such as "lazy-340m-15b-no-elastic" into a model, a recipe and optionally a variant. Returns the part of
// a message that tells how to use them, or "" if no such model and recipe exist.
std::string as_model_and_recipe(const std::string& stem, const fs::path& configs, bool extended) {
  for (const auto& [name, model, replacement] : model_names()) {
    if (!stem.starts_with(name + "-")) continue;
    const std::string rest = stem.substr(name.size() + 1);
    for (const std::string& recipe : shipped_names(ShippedKind::recipe)) {
      if (rest != recipe && !rest.starts_with(recipe + "-")) continue;
      const std::string variant = rest == recipe ? replacement : rest.substr(recipe.size() + 1);
      if (!variant.empty() && !contains(variants_of(configs / "models" / (model + std::string(kExtension))), variant))
        continue;
      const std::string plus = variant.empty() ? "" : "+" + variant;
      if (extended) return fmt::format("use \"models/{}.toml+recipes/{}.toml{}\"", model, recipe, plus);
      return fmt::format("use lazy train --model {0}{2} --recipe {1}, or {0}+{1}{2} with other commands", model, recipe,
                         plus);
    }
  }
  return "";
}

// Searches `folder` and then `configs` for a file NAME.toml that declares the variant. Returns a hint for an error
// message, such as "use FILE+VARIANT", or "" if no file is found. If `variant` is empty, the first existing file is
// used.
std::string as_variant(const fs::path& folder, const fs::path& configs, const std::string& name,
                       const std::string& variant) {
  for (const fs::path& place : {folder, configs}) {
    const fs::path file = place / (name + std::string(kExtension));
    if (!fs::is_regular_file(file)) continue;
    if (variant.empty()) return "use " + file.string();
    if (contains(variants_of(file), variant)) return fmt::format("use {}+{}", file.string(), variant);
  }
  return "";
}

}  // namespace

bool is_config_file(const std::string& part) { return part.ends_with(kExtension); }

std::vector<std::string> config_parts(const std::string& composed) {
  const std::string boundary = std::string(kExtension) + "+";
  if (composed.find(boundary) == std::string::npos || fs::exists(composed)) return {composed};
  std::vector<std::string> parts;
  std::string rest = composed;
  while (true) {
    // A part with a slash is a path. The folders of a path may contain '+', so a path ends only at ".toml+".
    const size_t plus = rest.find('+');
    const bool path = parts.empty() || rest.substr(0, plus).find('/') != std::string::npos;
    const size_t file_end = rest.find(boundary);
    const size_t end = !path ? plus : file_end == std::string::npos ? file_end : file_end + kExtension.size();
    parts.push_back(rest.substr(0, end));
    if (end == std::string::npos) return parts;
    rest = rest.substr(end + 1);
  }
}

std::string config_name(const fs::path& composed) {
  std::vector<std::string> names = config_parts(composed.string());
  for (std::string& part : names) {
    if (is_config_file(part) || names.size() == 1) part = fs::path(part).stem().string();
  }
  return fmt::format("{}", fmt::join(names, "-"));
}

std::vector<std::string> shipped_names(ShippedKind kind) {
  std::vector<std::string> names;
  const fs::path folder = shipped_folder();
  std::error_code error;  // ignored: if the folder cannot be read, the result is empty
  for (const auto& entry : fs::directory_iterator(folder / folder_of(kind), error)) {
    if (entry.path().extension() == kExtension) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string compose_config(const std::string& model, const std::string& recipe) {
  std::vector<std::string> parts = named_parts(model), recipes = named_parts(recipe);
  parts[0] = file_of(ShippedKind::model, parts[0], "--model");
  parts.insert(parts.begin() + 1, file_of(ShippedKind::recipe, recipes[0], "--recipe"));
  parts.insert(parts.end(), recipes.begin() + 1, recipes.end());
  return join(parts);
}

bool names_shipped_model(const std::string& argument) {
  if (fs::exists(argument)) return false;
  const std::string name = split(argument, '+')[0];
  return contains(shipped_names(ShippedKind::model), name) || !replacement_of_model(name).empty();
}

std::string resolve_config(const std::string& argument) {
  if (fs::exists(argument) || argument.find(kExtension) != std::string::npos) return argument;
  std::vector<std::string> parts = split(argument, '+');
  parts[0] = file_of(ShippedKind::model, parts[0], "configuration");
  if (parts.size() > 1 && contains(shipped_names(ShippedKind::recipe), parts[1]))
    parts[1] = file_of(ShippedKind::recipe, parts[1], "configuration");
  return join(parts);
}

std::string replacement_of(const fs::path& path, bool extended) {
  const fs::path folder = fs::absolute(path).lexically_normal().parent_path(), configs = shipped_folder();
  const std::string stem = path.stem().string();
  if (!is_config_file(path.string()) || configs.empty()) return "";
  // Example: configs/models/sigmoid-340m.toml was replaced by configs/models/transformer-340m.toml+sigmoid.
  if (const auto parts = split(replacement_of_model(stem), '+'); folder.filename() == "models" && parts.size() == 2)
    return as_variant(path.parent_path(), configs / "models", parts[0], parts[1]);
  // Example: configs/compare-55m/retnet.toml was replaced by configs/compare-55m.toml+retnet.
  if (folder.parent_path().filename() == "configs") {
    const std::string name = folder.filename();
    return as_variant(path.parent_path().parent_path(), configs, name, stem == kSharedFile ? "" : stem);
  }
  if (folder.filename() != "configs") return "";
  if (const std::string use = as_model_and_recipe(stem, configs, extended); !use.empty()) return use;
  // Example: configs/sink-55m-no-elastic.toml was replaced by configs/sink-55m.toml+no-elastic.
  for (size_t dash = stem.find('-'); dash != std::string::npos; dash = stem.find('-', dash + 1)) {
    const std::string use = as_variant(path.parent_path(), configs, stem.substr(0, dash), stem.substr(dash + 1));
    if (!use.empty()) return use;
  }
  return "";
}

}  // namespace lazy
