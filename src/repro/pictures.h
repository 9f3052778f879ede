// The figures of a recipe's HTML page, selected by the names in the recipe file.
#pragma once
#include <string>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

std::vector<std::string> picture_names();
// Returns a section of the page, or an empty string if nothing was measured. Throws an Error for an unknown name.
std::string draw_picture(const std::string& name, const Results& results, const PublishedTable& published);

// Implemented in pictures/gpt2.cc, attention.cc, toys.cc and in vector_tables.cc. The functions return HTML that shows
// the values of one model; `number` makes element ids unique.
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
