// Encoding of the sources of gathered keys and values, for host and device code.
#pragma once
#include <cstdint>

namespace lazy::ops {

// A source is the index of a new token (from 0), in_pages(slot) for a slot of the KV cache (page * page_size + offset),
// or kZeros for a row of zeros.
constexpr int64_t kZeros = -1;
constexpr int64_t in_pages(int64_t place) { return -2 - place; }  // its own inverse function

}  // namespace lazy::ops
