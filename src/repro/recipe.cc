#include "repro/recipe.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text.h"

namespace lazy::repro {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{table1(),  table2(),   table3(),   figure4(), figure5(),      figure6(),   figure8(),      figure9(),
                                       figure10(), ablation(), parity(),  cross_domain(), rope_base(), offset_start(), latency()};
  return all;
}

const Recipe& find_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  const std::string near = nearest(name, names);
  fail("repro", "no recipe '{}'{}; expected list, all or one of {}", name, near.empty() ? "" : "; did you mean " + near + "?", fmt::join(names, ", "));
}

}  // namespace lazy::repro
