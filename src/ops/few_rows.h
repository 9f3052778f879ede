// Linear layers of inference on a CPU: a few rows against a weight matrix, as in decoding. The weights are read once,
// at the memory's pace, in fp32, bf16 or int8. A row's result does not depend on the other rows.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Up to this many rows the product is bound by reading the weights.
constexpr int64_t kFewLinearRows = 16;

// A matrix in 8-bit numbers, each row with a scale: row n is scale[n] * values[n].
struct Int8Matrix {
  at::Tensor values;  // (out, in) int8, from -127 to 127
  at::Tensor scale;   // (out) fp32
  bool defined() const { return values.defined(); }
};

// Nearest multiples of largest / 127 of each row. W (out, in) fp32.
Int8Matrix quantize_int8(const at::Tensor& W);
at::Tensor dequantize(const Int8Matrix& W);  // fp32

// Whether few_rows_linear serves x (rows, in): on a CPU, at most kFewLinearRows, fp32 or bf16.
bool serves_few_rows(const at::Tensor& x);
// x (rows, in) -> (rows, out) in x's dtype, sums in fp32. W (out, in) contiguous, fp32 or bf16. No gradient. Throws
// c10::Error for shapes that do not fit.
at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& W);
at::Tensor few_rows_linear(const at::Tensor& x, const Int8Matrix& W);

}  // namespace lazy::ops
