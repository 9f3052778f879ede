// What learned distance biases show: how far they reach, and whether they inhibit return; and what recipes share that
// compare parts of a model's depth.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::repro {

using BiasCurve = std::vector<double>;  // bias at distance 0, 1, ..., W - 1 of one head

// The last distance whose |bias| exceeds `share` of the head's largest |bias|; 0 for a curve of zeros.
int64_t effective_range(const BiasCurve& bias, double share = 0.05);

// Inhibition of return of one head: the mean at distances 0 and 1 is positive; the minimum over 1 to 10 is negative;
// the mean over 10 to 100 returns towards zero (it is above that minimum and smaller in magnitude); the mean over 100
// to 511 is near zero (within 5 % of the head's largest |bias|, as for the effective range). Ranges are inclusive and
// stop at the curve's end.
struct InhibitionOfReturn {
  double first = 0, dip = 0, recovery = 0, far = 0;  // the four quantities, in that order
  bool holds = false;
};
// Error for a curve that ends at distance 100 or before: it cannot show the pattern.
InhibitionOfReturn inhibition_of_return(const BiasCurve& bias);
inline constexpr int64_t kShortestForReturn = 102;  // entries

// Least-squares slope of the bias against distance over [0, last].
double slope(const BiasCurve& bias, int64_t last);
double mean_between(const BiasCurve& bias, int64_t first, int64_t last);  // inclusive, truncated at the curve's end
double mean_magnitude(const BiasCurve& bias);

// The paper speaks of layers 1, 2 to 10 and 10 to 24 of 24; other depths are cut at the same share.
// Layer `of_24` of 24 as a layer of `layers`, both 1-based.
inline int64_t layer_at(int64_t of_24, int64_t layers) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(of_24 * layers) / 24), 1, layers);
}

// f(head) of every head in layers first..last, 1-based and inclusive.
template <typename Head, typename F>
std::vector<double> over_heads(const std::vector<std::vector<Head>>& layers, int64_t first, int64_t last, const F& f) {
  std::vector<double> out;
  for (int64_t l = first; l <= last && l <= static_cast<int64_t>(layers.size()); ++l) {
    for (const Head& head : layers[static_cast<size_t>(l - 1)]) out.push_back(static_cast<double>(f(head)));
  }
  return out;
}

}  // namespace lazy::repro
