// Sharded state: what a rank holds of a tensor that may be spread over several. For checkpoints of any number of ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lazy::train {

struct Piece {
  std::string name;
  at::Tensor tensor;                  // elements [begin, end) of the whole tensor, flattened in row-major order
  std::vector<int64_t> global_shape;  // of the whole
  int64_t begin = 0, end = 0;

  int64_t global_numel() const {
    int64_t n = 1;
    for (const int64_t size : global_shape) n *= size;
    return n;
  }
};

}  // namespace lazy::train
