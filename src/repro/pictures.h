// The pictures of a recipe's HTML page, by the name that the recipe's file gives.
#pragma once
#include <string>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

std::vector<std::string> picture_names();
// A section of the page; empty when nothing is measured. Error for an unknown name.
std::string draw_picture(const std::string& name, const Results& results, const PublishedTable& published);

// pictures/gpt2.cc, attention.cc, toys.cc; vector_tables.cc. HTML of one model's values; `number` makes ids unique.
std::string draw_delta(const Json& values, int number);
std::string draw_interventions(const Json& values, int number);
std::string draw_gamma(const Json& values, int number);
std::string draw_positions(const Json& values, int number);
std::string draw_repetition(const Json& values, int number);
std::string draw_vectors(const Json& values, const std::vector<double>& printed);
std::string draw_masks(const Results& results);
std::string draw_variances(const Results& results);
std::string draw_toys(const Results& results, const std::string& data);
std::string draw_triggers(const Results& results);

}  // namespace lazy::repro
