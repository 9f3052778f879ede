#include "repro/recipe.h"

#include <fmt/ranges.h>

#include <deque>

#include "core/error.h"
#include "core/file.h"
#include "core/known_names.h"
#include "repro/configs.h"
#include "repro/recipe_file.h"

namespace lazy::repro {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = [] {
    std::vector<Recipe> out;
    for (const auto& [file, text] : embedded_configs()) {
      if (file.starts_with("repro/") && !file.ends_with("/shared.toml"))
        out.push_back(recipe_of(read_recipe(std::string(text), std::string(file))));
    }
    return out;
  }();
  return all;
}

const Recipe& find_recipe(const std::string& name) {
  if (name.ends_with(".toml")) {
    static std::deque<Recipe> own;  // kept in memory, because a run refers to its recipe
    own.push_back(recipe_of(read_recipe(read_file(name), name)));
    return own.back();
  }
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
  }
  const std::vector<std::string> names = names_of(recipes());
  fail("repro", "unknown recipe '{}'{}; expected list, all, FILE.toml or one of {}", name, did_you_mean(name, names),
       fmt::join(names, ", "));
}

}  // namespace lazy::repro
