// Statistics of learned distance biases: the distance up to which they are effective, and whether they show inhibition
// of return. Also contains helpers for recipes that compare ranges of layers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::repro {

using BiasCurve = std::vector<double>;  // biases of one head at the distances 0, 1, ..., W - 1

// Returns the last distance whose |bias| exceeds `share` of the head's largest |bias|, or 0 for a curve of zeros.
int64_t effective_range(const BiasCurve& bias, double share = 0.05);

// Tests the pattern "inhibition of return" on the bias of one head. All four conditions must hold: the mean at
// distances 0 and 1 is positive; the minimum over distances 1 to 10 is negative; the mean over 10 to 100 is closer to
// zero than this minimum and above it; and the absolute mean over 100 to 511 is at most 5 % of the head's largest
// |bias|. Ranges are inclusive and end where the curve ends.
struct InhibitionOfReturn {
  double first = 0, dip = 0, recovery = 0, far = 0;  // the four quantities in the order of the description
  bool holds = false;
};
// Throws an Error if the curve has fewer than kShortestForReturn entries, because a shorter curve cannot show the
// pattern.
InhibitionOfReturn inhibition_of_return(const BiasCurve& bias);
inline constexpr int64_t kShortestForReturn = 102;  // minimum number of curve entries

// Least-squares slope of the bias against distance over [0, last].
double slope(const BiasCurve& bias, int64_t last);
// Both ends are inclusive; `last` is limited to the end of the curve.
double mean_between(const BiasCurve& bias, int64_t first, int64_t last);
double mean_magnitude(const BiasCurve& bias);

// The paper names layers 1, 2 to 10 and 10 to 24 of its 24-layer models. This function maps layer `of_24` of 24 to the
// layer at the same relative depth of a model with `layers` layers. Both numbers are 1-based.
inline int64_t layer_at(int64_t of_24, int64_t layers) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(of_24 * layers) / 24), 1, layers);
}

// Applies f to every head of layers first..last (1-based and inclusive) and returns the values.
template <typename Head, typename F>
std::vector<double> over_heads(const std::vector<std::vector<Head>>& layers, int64_t first, int64_t last, const F& f) {
  std::vector<double> out;
  for (int64_t l = first; l <= last && l <= static_cast<int64_t>(layers.size()); ++l) {
    for (const Head& head : layers[static_cast<size_t>(l - 1)]) out.push_back(static_cast<double>(f(head)));
  }
  return out;
}

}  // namespace lazy::repro
