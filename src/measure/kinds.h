// The kinds of measurements of `lazy measure`, with their settings and default values.
#pragma once
#include <string>
#include <vector>

#include "measure/experiment.h"

namespace lazy::measure {

struct Kind {
  std::string name, help;
  // What the measurement reads in addition to the model folder: "" (nothing), "text" (files, or a corpus) or "corpus".
  std::string input;
  Json defaults;  // the settings with their default values; a setting has the type of its default value
  Json (*run)(const ExperimentInputs&);
};

const std::vector<Kind>& kinds();
// Returns the kind with this name. Throws an Error for an unknown name and suggests the nearest kind.
const Kind& find_kind(const std::string& name);
// Returns the settings of a kind with the values of `assignments`, which have the form key=value. Values of a list are
// separated by commas. Throws an Error for an unknown key or a value of a different type.
Json settings_of(const Kind& kind, const std::vector<std::string>& assignments);

}  // namespace lazy::measure
