// lazy::quantize_fp8: matrices in 8-bit floating point with one scale each, for at::_scaled_mm.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// What at::_scaled_mm wants of every size of its factors.
inline constexpr int64_t kFp8Multiple = 16;

struct Fp8Matrix {
  at::Tensor rows, transposed;  // (n, width), (width, n), each contiguous; undefined unless wanted
  at::Tensor scale;             // fp32 scalar on the same device: an element is the stored value times this
};

// `parts`: (n, d_p) matrices side by side, bf16 (on the CPU fp32 too), rows at any stride. The scale takes the largest
// absolute value of all to the largest number of the type: 448 of float8_e4m3fn, 57344 of float8_e5m2. NaN and infinity
// make the scale NaN or infinite, so that products show them.
Fp8Matrix quantize_fp8(at::TensorList parts, at::ScalarType type, bool rows, bool transposed);

// For the CPU and CUDA implementations.
void check_quantize_fp8(at::TensorList parts, at::ScalarType type);
// A matrix of zeros has this maximum, whose reciprocal is finite.
inline constexpr float kFp8LeastMaximum = 1e-30f;
inline float largest_fp8(at::ScalarType type) { return type == at::kFloat8_e5m2 ? 57344.0f : 448.0f; }

}  // namespace lazy::ops
