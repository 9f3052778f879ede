// The segments of a text in Transformer-XL.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lazy {

// A text is split into segments of `length` tokens (0: one segment). Tokens of a segment also attend to the `memory`
// tokens before the segment.
struct Segments {
  int64_t length = 0, memory = 0;
  // Returns the first token of the segment that contains `token`.
  int64_t begin(int64_t token) const { return length > 0 ? token / length * length : 0; }
  // Returns the first token to which the tokens of this segment attend.
  int64_t first_seen(int64_t token) const { return std::max<int64_t>(0, begin(token) - memory); }
};

}  // namespace lazy
