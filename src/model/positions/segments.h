// The segments that Transformer-XL splits a text into.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lazy {

// A text is split into segments of `length` tokens (0: one segment). Each segment also sees the `memory` tokens before
// it.
struct Segments {
  int64_t length = 0, memory = 0;
  int64_t begin(int64_t token) const { return length > 0 ? token / length * length : 0; }  // of the token's segment
  int64_t first_seen(int64_t token) const { return std::max<int64_t>(0, begin(token) - memory); }
};

}  // namespace lazy
