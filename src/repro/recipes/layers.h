// Parts of a model's depth: the paper speaks of layers 1, 2 to 10 and 10 to 24 of 24; other depths are cut at the same
// share.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace lazy::repro {

// Layer `of_24` of 24, counted from 1, as a layer of `layers`.
inline int64_t layer_at(int64_t of_24, int64_t layers) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(of_24 * layers) / 24), 1, layers);
}

// f(head) of every head in layers first..last, counted from 1.
template <typename Head, typename F>
std::vector<double> over_heads(const std::vector<std::vector<Head>>& layers, int64_t first, int64_t last, const F& f) {
  std::vector<double> out;
  for (int64_t l = first; l <= last && l <= static_cast<int64_t>(layers.size()); ++l) {
    for (const Head& head : layers[static_cast<size_t>(l - 1)]) out.push_back(static_cast<double>(f(head)));
  }
  return out;
}

}  // namespace lazy::repro
