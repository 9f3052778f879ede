// Rounds the elements of matrices to the nearest of a few equally spaced values, symmetric around 0. This simulates the
// loss of precision when weights, product inputs or cached keys and values are stored with few bits. No calibration is
// needed.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// The set of elements that share a scale: the whole tensor, a row (`token`: one token, or one output of a weight
// matrix), or a column (`channel`).
enum class RoundingUnit { tensor, token, channel };

struct Rounding {
  int64_t bits = 0;  // 2 to 8; 0: no rounding
  RoundingUnit unit = RoundingUnit::token;
  bool used() const { return bits > 0; }
};

// Approximates x by scale * values. The largest absolute value among the elements that share a scale is mapped to
// 2^(bits - 1) - 1.
struct Rounded {
  at::Tensor values;  // (rows, columns) int8
  at::Tensor scale;   // fp32: (1, 1), (rows, 1) or (1, columns)
};

// Rounds x (rows, columns). Ties are rounded to even. If all elements that share a scale are zero, the scale is 1.
Rounded rounded(const at::Tensor& x, const Rounding& rounding);
// Returns the rounded x (..., columns) in the dtype of x. All dimensions but the last one form the rows.
at::Tensor round_to_nearest(const at::Tensor& x, const Rounding& rounding);

// Whether LibTorch can multiply these integer matrices. Requires that neither matrix has different scales along the
// inner dimension and, on a GPU, sizes that at::_int_mm supports.
bool has_int8_product(const Rounded& x, const Rounded& W);
// Returns x W^T (rows of x, rows of W) in fp32, computed from exact integer sums.
at::Tensor int8_product(const Rounded& x, const Rounded& W);

}  // namespace lazy::ops
