// lazy::quantize_fp8: converts matrices to 8-bit floating point with one scale per matrix, for at::_scaled_mm.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// at::_scaled_mm requires that every dimension of its operands is a multiple of this number.
inline constexpr int64_t kFp8Multiple = 16;

struct Fp8Matrix {
  at::Tensor rows, transposed;  // (n, width) and (width, n), contiguous; undefined unless requested
  at::Tensor scale;             // fp32 scalar on the same device: element = stored value * scale
};

// `parts` are matrices (n, d_p), which are concatenated along the columns. They are bf16 (on the CPU also fp32) and may
// have any row stride. The scale maps the largest absolute value of all parts to the largest number of the type: 448
// for float8_e4m3fn, 57344 for float8_e5m2. If the input contains NaN or infinity, the scale is NaN or infinite, so
// that the results of matrix products are not finite either.
Fp8Matrix quantize_fp8(at::TensorList parts, at::ScalarType type, bool rows, bool transposed);

// Only the CPU and CUDA implementations use the following declarations.
void check_quantize_fp8(at::TensorList parts, at::ScalarType type);
// The largest absolute value of a matrix is treated as at least this number, so that the reciprocal of the scale is
// finite for a matrix of zeros.
inline constexpr float kFp8LeastMaximum = 1e-30f;
inline float largest_fp8(at::ScalarType type) { return type == at::kFloat8_e5m2 ? 57344.0f : 448.0f; }

}  // namespace lazy::ops
