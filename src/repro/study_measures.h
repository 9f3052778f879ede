// Measures for experiments on a given model that need more than the number at a path (measure_kinds.h).
#pragma once
#include <vector>

#include "repro/measure_kinds.h"

namespace lazy::repro {

// For interventions: returns the mean over random pairs of columns, one value per text on which all pairs were
// measured.
std::vector<double> control_by_text(const Json& control);

Numbers control_measure(const Json& values, const MeasureSpec& measure);
// One item per layer: 1 if Delta_1 exceeds the mean of the remaining positions by more than two of their standard
// deviations, otherwise 0.
Numbers delta_outliers(const Json& values, const MeasureSpec& measure);
// One item per layer: mean |gamma| of the two coordinates with the largest |EPE_1| (effective positional encoding of
// the first position), minus the mean over all coordinates.
Numbers gamma_excess(const Json& values, const MeasureSpec& measure);
// Returns how many of the two coordinates at `path` are equal to 138 or 447.
Numbers massive_coordinates(const Json& values, const MeasureSpec& measure);
// Returns how many numbers of the nearest row equal the published numbers in `row` within the precision of a bf16
// model.
Numbers nearest_row_measure(const Json& values, const MeasureSpec& measure);
// For values [layer][head][position] at `path`: the value at the first position divided by the mean over the remaining
// positions, minus 1.
Numbers first_over_others(const Json& values, const MeasureSpec& measure);
// For values [layer][head][position] at `path`: the standard deviation over positions divided by the mean.
Numbers relative_spread(const Json& values, const MeasureSpec& measure);

}  // namespace lazy::repro
