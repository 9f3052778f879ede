// Encoding of the source from which each row of the gathered keys and values is copied, for host and device code.
#pragma once
#include <cstdint>

namespace lazy::ops {

// The source of a gathered row is one number: the index n >= 0 of a new token, in_pages(slot) for the slot page *
// page_size + offset of the KV cache, or kZeros for a row of zeros.
constexpr int64_t kZeros = -1;
constexpr int64_t in_pages(int64_t place) { return -2 - place; }  // also converts back: in_pages(in_pages(n)) is n

}  // namespace lazy::ops
