// A dot plot: a row a name, a mark a value, and an interval of the mean where there is one.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/statistics.h"

namespace lazy::report {

struct DotRow {
  std::string name;
  size_t series = 0;                           // colour, style.h
  std::vector<std::pair<int, double>> values;  // the number that chooses the mark, and the value
  std::optional<ConfidenceInterval> interval;
};

struct DotPlot {
  std::string label;    // the whole picture in a sentence, for screen readers
  std::string x_label;  // what the values are
  std::vector<DotRow> rows;
  std::optional<std::pair<double, std::string>> reference;  // a vertical line with a label
};

// The axis covers every value, interval and the reference. Rows without values keep their place.
std::string draw(const DotPlot& plot, double width);
double height_of(const DotPlot& plot);

}  // namespace lazy::report
