#include "repro/recipes/given_models.h"

#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"

namespace lazy::repro {

std::vector<Finding> judge_given(const GivenModelRecipe& recipe, const Conditions& conditions, const Results& results) {
  std::vector<Finding> out;
  for (const auto& [name, folder] : conditions.models) {
    const Json* values = results.find(name + "." + recipe.experiment);
    if (!values) continue;
    for (Finding& f : recipe.judge({name, conditions.models.size() > 1 ? name + ": " : "", *values}))
      out.push_back(std::move(f));
  }
  if (out.empty()) out.push_back(undecided(recipe.unknown, "no --model DIR was given"));
  return out;
}

std::string draw_given(const GivenModelRecipe& recipe, const Results& results) {
  std::string body;
  int number = 0;
  for (const auto& [model, values] : results.of_kind("." + recipe.experiment))
    body += "<h3>" + html_escape(model) + "</h3>" + recipe.draw(*values, ++number);
  return body.empty() ? "" : report::section(recipe.section, recipe.heading, "", body);
}

Recipe given_model_recipe(const GivenModelRecipe& recipe) {
  return {recipe.name,
          recipe.title,
          recipe.source,
          [recipe](const Conditions& c) { return Plan(c).experiment(recipe.experiment, recipe.settings).steps(); },
          [recipe](const Conditions& c, const Results& results) { return judge_given(recipe, c, results); },
          {},
          recipe.notes,
          [recipe](const Results& results) { return draw_given(recipe, results); }};
}

const char* words(sinks::EffectivePositions reading) {
  constexpr const char* all[] = {"the MLP on p as it stands", "the MLP on the norm of p",
                                 "the whole first layer on p alone"};
  return all[static_cast<size_t>(reading)];
}

}  // namespace lazy::repro
