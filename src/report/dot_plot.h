// A dot plot: one row per name, one mark per value, and the interval of the mean if there is one.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/statistics.h"

namespace lazy::report {

struct DotRow {
  std::string name;
  size_t series = 0;                           // index of the series color (style.h)
  std::vector<std::pair<int, double>> values;  // index of the mark, and the value
  std::optional<ConfidenceInterval> interval;
};

struct DotPlot {
  std::string label;    // one sentence that describes the plot for screen readers
  std::string x_label;  // the meaning of the values
  std::vector<DotRow> rows;
  std::optional<std::pair<double, std::string>> reference;  // a vertical line with a label
};

// The axis covers every value, every interval and the reference. A row without values is drawn empty.
std::string draw(const DotPlot& plot, double width);
double height_of(const DotPlot& plot);

}  // namespace lazy::report
