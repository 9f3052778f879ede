// Where rows of gathered keys and values come from, on the host and on the device.
#pragma once
#include <cstdint>

namespace lazy::ops {

// A source: a token, from 0 on; in_pages(place); or kZeros.
constexpr int64_t kZeros = -1;
constexpr int64_t in_pages(int64_t place) { return -2 - place; }  // its own inverse

}  // namespace lazy::ops
