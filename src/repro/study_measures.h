// Measures of the studies of a given model that are more than numbers at a path (measure_kinds.h).
#pragma once
#include <vector>

#include "repro/measure_kinds.h"

namespace lazy::repro {

// Of interventions: the mean over random pairs of columns, for each text that all pairs were measured on.
std::vector<double> control_by_text(const Json& control);

Numbers control_measure(const Json& values, const MeasureSpec& measure);
// 1 for a layer whose Delta_1 lies more than two standard deviations of the other positions above their mean, else 0.
Numbers delta_outliers(const Json& values, const MeasureSpec& measure);
// By layer: mean |gamma| of the two coordinates where |EPE_1| is largest, above the mean over all.
Numbers gamma_excess(const Json& values, const MeasureSpec& measure);
// How many of the two coordinates at `path` are 138 and 447.
Numbers massive_coordinates(const Json& values, const MeasureSpec& measure);
// How many numbers of the nearest row are those of `row`, to a bf16 model's digits.
Numbers nearest_row_measure(const Json& values, const MeasureSpec& measure);
// Of [layer][head][position] at `path`: the first position's value over the mean of the others, less 1.
Numbers first_over_others(const Json& values, const MeasureSpec& measure);
// Of the same: the standard deviation over positions relative to the mean.
Numbers relative_spread(const Json& values, const MeasureSpec& measure);

}  // namespace lazy::repro
