// What decision A19 asks of learned distance biases: how far they reach, and whether they inhibit return.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::repro {

using Curve = std::vector<double>;  // bias at distance 0, 1, ..., W - 1 of one head

// The last distance whose |bias| exceeds `share` of the head's largest |bias|; 0 for a curve of zeros.
int64_t effective_range(const Curve& bias, double share = 0.05);

// Decision A19, head by head: the mean at distances 0 and 1 is positive; the minimum over 1 to 10 is negative; the mean
// over 10 to 100 has come back towards zero (it is above that minimum and nearer to zero); the mean over 100 to 511 is
// near zero (within 5 % of the head's largest |bias|, the same 5 % as the effective range's). Ranges include both ends
// and stop at the curve's end.
struct InhibitionOfReturn {
  double first = 0, dip = 0, recovery = 0, far = 0;  // the four quantities, in that order
  bool holds = false;
};
// The curve must reach beyond distance 100: shorter ones cannot show the pattern (Error).
InhibitionOfReturn inhibition_of_return(const Curve& bias);
inline constexpr int64_t kShortestForReturn = 102;  // entries

// Least-squares slope of the bias against distance over [0, last].
double slope(const Curve& bias, int64_t last);
double mean_between(const Curve& bias, int64_t first, int64_t last);  // both included, cut at the end
double mean_magnitude(const Curve& bias);

}  // namespace lazy::repro
