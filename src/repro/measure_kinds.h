// Functions that compute the measured quantities of a recipe from the recorded values of a step. The `kind` of a
// [[measure]] selects a function by name.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct MeasureSpec;

// One number per text, head or round. If `items` is empty, `missing` explains why.
struct Numbers {
  std::vector<double> items;
  std::string note;  // appended to the reason of the verdict
  std::string missing;
};

// Throws an Error for a kind that measure_kinds() does not list, or if an option that the kind needs is missing.
Numbers measured_numbers(const Json& values, const MeasureSpec& measure);
std::vector<std::string> measure_kinds();
std::vector<std::string> number_maps();
std::vector<std::string> head_measures();

// Returns the value at a path, or null if the path does not exist. A path consists of keys and indices between
// separators. `*` matches every element; `~9` is the tenth element or, in a shorter list, the last element.
Json at_path(const Json& values, const std::string& path, char separator = '/');
// Returns one number per element of the outermost list, the mean of all numbers within the element. For a single
// number, the result has one item.
std::vector<double> items_of(const Json& found);

}  // namespace lazy::repro
