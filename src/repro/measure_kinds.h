// What a recipe's measure computes from a step's recorded values: by name, for `kind` of a [[measure]].
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct MeasureSpec;

// One number for each text, head or round. None: `missing` says why.
struct Numbers {
  std::vector<double> items;
  std::string note;  // for the reader, behind the verdict's reason
  std::string missing;
};

// Error for a kind that measure_kinds() lacks, or an option that the kind needs.
Numbers measured_numbers(const Json& values, const MeasureSpec& measure);
std::vector<std::string> measure_kinds();
std::vector<std::string> number_maps();
std::vector<std::string> head_measures();

// The value at a path: keys and indices between separators, `*` for every element, `~9` for the tenth or, in a shorter
// list, the last one. Null: there is none.
Json at_path(const Json& values, const std::string& path, char separator = '/');
// One number an element of the outermost list: the mean of all numbers within. A single number is one item.
std::vector<double> items_of(const Json& found);

}  // namespace lazy::repro
