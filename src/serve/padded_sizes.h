// Sizes to which recorded work is padded, so that few shapes are recorded.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace lazy {

// The power of two that is at least x.
inline int64_t power_above(int64_t x) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x))); }

// At least x, a multiple of `unit`: of large sizes four between a power of two and the next one.
inline int64_t quarter_above(int64_t x, int64_t unit) {
  const int64_t step = std::max(power_above(x) / 8, unit);
  return (x + step - 1) / step * step;
}

}  // namespace lazy
