// Padded sizes for work that is captured as CUDA graphs. Coarse sizes keep the number of captured graphs small.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace lazy {

// Returns the smallest power of two that is at least x.
inline int64_t power_above(int64_t x) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x))); }

// Rounds x up to a multiple of `unit`. For large x, the result is one of four equally spaced sizes between two
// consecutive powers of two.
inline int64_t quarter_above(int64_t x, int64_t unit) {
  const int64_t step = std::max(power_above(x) / 8, unit);
  return (x + step - 1) / step * step;
}

}  // namespace lazy
