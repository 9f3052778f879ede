// What recipes about given models share: a study of each model, judged and drawn model by model.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "repro/recipe.h"
#include "sinks/positions.h"

namespace lazy::repro {

// A model that a study was run on.
struct StudiedModel {
  std::string name;
  std::string of;  // the beginning of a sentence about one of several models; nothing where there is one
  const Json& values;
};

struct StudiedRecipe {
  std::string name, title, source;
  std::string study;  // of studies/study.h
  Json settings;
  Claim unknown;  // what stays open where no model is given
  std::function<std::vector<Finding>(const StudiedModel&)> judge;
  std::vector<std::string> notes;
  std::string section, heading;                                     // of the page's pictures
  std::function<std::string(const Json& values, int number)> draw;  // HTML; the number tells models apart in ids
};
Recipe studied_recipe(const StudiedRecipe& recipe);

// Its parts, for recipes that study models of their own as well.
std::vector<Finding> judge_given(const StudiedRecipe& recipe, const Conditions& conditions, const Results& results);
std::string draw_studied(const StudiedRecipe& recipe, const Results& results);

// The shape of `gpt2`, whose numbers the GPT-2 study prints. Other weights of that shape are another model: then the
// numbers differ.
inline bool is_gpt2_small(const Json& values) { return values.at("layers") == 12 && values.at("hidden_size") == 768; }

// How EPE is read, in words.
const char* words(sinks::EffectivePositions reading);

}  // namespace lazy::repro
