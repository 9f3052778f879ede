// Rounding of matrices to a few bits, symmetric, to the nearest of equally spaced values: what weights, inputs of
// products and cached keys and values lose in low precision, without calibration.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// What shares a scale: the whole tensor, a row (a token, an output of a weight matrix), or a column (a channel).
enum class RoundingUnit { tensor, token, channel };

struct Rounding {
  int64_t bits = 0;  // 2 to 8; 0: none
  RoundingUnit unit = RoundingUnit::token;
  bool used() const { return bits > 0; }
};

// x = scale * values; the largest value of a unit is 2^(bits - 1) - 1.
struct Rounded {
  at::Tensor values;  // (rows, columns) int8
  at::Tensor scale;   // fp32: (1, 1), (rows, 1) or (1, columns)
};

// x (rows, columns). Halves are rounded to the even neighbour; a unit of zeros has scale 1.
Rounded rounded(const at::Tensor& x, const Rounding& rounding);
// The rounded x (..., columns), in its type. Rows are all indices but the last.
at::Tensor round_to_nearest(const at::Tensor& x, const Rounding& rounding);

// Whether LibTorch multiplies these integers: no scale of the inner dimension, and on a GPU sizes that its product
// takes.
bool has_int8_product(const Rounded& x, const Rounded& W);
// x W^T, (rows of x, rows of W) fp32, from exact integer sums.
at::Tensor int8_product(const Rounded& x, const Rounded& W);

}  // namespace lazy::ops
