#include "model/positions/alibi.h"

#include <cmath>

namespace lazy {

std::vector<double> alibi_slopes(int64_t heads) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<double> slopes;
  for (int64_t r = 1; r <= n; ++r) slopes.push_back(std::exp2(-8.0 * static_cast<double>(r) / static_cast<double>(n)));
  for (int64_t r = 1; r <= heads - n; ++r) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(2 * r - 1) / static_cast<double>(2 * n)));
  }
  return slopes;
}

}  // namespace lazy
