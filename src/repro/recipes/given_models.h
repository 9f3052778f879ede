// Recipes about models that the user gives: one experiment on each model, judged and drawn model by model.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "repro/recipe.h"
#include "sinks/positional_signal.h"

namespace lazy::repro {

// A model and the result of its experiment.
struct GivenModel {
  std::string name;
  std::string of;  // prefix of claims about one of several models; empty for a single model
  const Json& values;
};

struct GivenModelRecipe {
  std::string name, title, source;
  std::string experiment;  // a name of experiments/experiment.h
  Json settings;
  Claim unknown;  // the finding that stays open without a model
  std::function<std::vector<Finding>(const GivenModel&)> judge;
  std::vector<std::string> notes;
  std::string section, heading;                                     // of the page's pictures
  std::function<std::string(const Json& values, int number)> draw;  // HTML; `number` makes ids unique
};
Recipe given_model_recipe(const GivenModelRecipe& recipe);

// The parts, for recipes that also train models.
std::vector<Finding> judge_given(const GivenModelRecipe& recipe, const Conditions& conditions, const Results& results);
std::string draw_given(const GivenModelRecipe& recipe, const Results& results);

// The shape of `gpt2`, the model of the GPT-2 study. Other weights of this shape give other numbers.
inline bool is_gpt2_small(const Json& values) { return values.at("layers") == 12 && values.at("hidden_size") == 768; }

// The definition of EPE, in words.
const char* words(sinks::EffectivePositions reading);

}  // namespace lazy::repro
