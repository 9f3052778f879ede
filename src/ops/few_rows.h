// Linear layers of inference: a few rows against a weight matrix, as in decoding. The weights are read once, at the
// memory's pace; on a CPU in fp32, bf16 or int8, on a GPU in bf16 or fp16. A row's bits do not depend on the others.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Up to this many rows the product is bound by reading the weights.
constexpr int64_t kFewLinearRows = 16;
constexpr int64_t kFewCudaRows = 256;  // a GPU's: of the largest decoding pass

// A matrix in 8-bit numbers, each row with a scale: row n is scale[n] * values[n].
struct Int8Matrix {
  at::Tensor values;  // (out, in) int8, from -127 to 127
  at::Tensor scale;   // (out) fp32
  bool defined() const { return values.defined(); }
};

// Nearest multiples of largest / 127 of each row. W (out, in) fp32.
Int8Matrix quantize_int8(const at::Tensor& W);
at::Tensor dequantize(const Int8Matrix& W);  // fp32

// Whether few_rows_linear serves x (rows, in): on a CPU at most kFewLinearRows in fp32 or bf16, on a GPU at most
// kFewCudaRows in bf16 or fp16 where `in` is a multiple of 8.
bool serves_few_rows(const at::Tensor& x);
// x (rows, in) -> (rows, out) in x's dtype, with `wide` in fp32; sums in fp32. W (out, in) contiguous, on a CPU fp32 or
// bf16, on a GPU x's type. No gradient. Throws c10::Error for shapes that do not fit.
at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& W, bool wide = false);
at::Tensor few_rows_linear(const at::Tensor& x, const Int8Matrix& W);

// On a GPU, one pass: y = rms_norm(x) W^T, with swiglu silu of the first half of W's product times the second half.
// Where serves_few_rows(x).
struct FewRowsInput {
  at::Tensor x;                 // (rows, in)
  at::Tensor norm_weight = {};  // (in) fp32; undefined: no norm
  double eps = 0;
  at::Tensor add = {};     // (rows, out) of x's type, added to the rounded y; neither with swiglu nor with wide
  at::Tensor next_W = {};  // of the product behind this one: a hint to ask memory for it meanwhile
};
at::Tensor few_rows_product(const FewRowsInput& input, const at::Tensor& W, bool swiglu = false, bool wide = false);
void check_few_rows(const FewRowsInput& input, const at::Tensor& W);  // throws c10::Error where they do not fit

}  // namespace lazy::ops
