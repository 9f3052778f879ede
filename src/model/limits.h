// The refusal of a size that is out of range, one line for every field of a model's configuration.
#pragma once
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace lazy {

inline void check_whole(int64_t value, std::string_view field, int64_t minimum, int64_t maximum) {
  if (value < minimum || value > maximum)
    fail("model", "{}: expected {} to {}, found {}", field, minimum, maximum, value);
}

}  // namespace lazy
