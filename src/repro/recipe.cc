#include "repro/recipe.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text.h"

namespace lazy::repro {

namespace {

std::vector<Recipe> every_recipe() {
  std::vector<Recipe> all{table1(),  table2(),       table3(),    figure4(),      figure5(),
                          figure6(), figure8(),      figure9(),   figure10(),     ablation(),
                          parity(),  cross_domain(), rope_base(), offset_start(), latency()};
  for (Recipe& table : tables4to7()) all.push_back(std::move(table));
  for (auto* recipe : {figure2, figure2a, figure3, figure7, streaming_check, gpt2_gamma, gpt2_delta, gpt2_positions,
                       gpt2_interventions, toy_unigram, toy_bigram})
    all.push_back(recipe());
  return all;
}

}  // namespace

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = every_recipe();
  return all;
}

const Recipe& find_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  const std::string near = nearest(name, names);
  fail("repro", "no recipe '{}'{}; expected list, all or one of {}", name,
       near.empty() ? "" : "; did you mean " + near + "?", fmt::join(names, ", "));
}

}  // namespace lazy::repro
