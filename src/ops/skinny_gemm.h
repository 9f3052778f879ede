// Linear layers of inference as skinny GEMMs: a small batch of rows, as in a decode step, times a weight matrix. Bound
// by memory bandwidth: each weight is read only once. Supports fp32, bf16 and int8 weights on a CPU, bf16 and fp16 on a
// GPU. The result of a row is bitwise independent of the other rows.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Maximum number of rows on a CPU. Up to this number, the time of the product is bound by reading the weights.
constexpr int64_t kMaxSkinnyRowsCpu = 16;
constexpr int64_t kMaxSkinnyRowsCuda = 256;  // limit on a GPU: the number of rows of the largest decode step

// A matrix in int8 with one scale per row: row n is scale[n] * values[n].
struct Int8Matrix {
  at::Tensor values;  // (out, in) int8, from -127 to 127
  at::Tensor scale;   // (out) fp32
  bool defined() const { return values.defined(); }
};

// Rounds each row of W (out, in), fp32, to multiples of a scale, which is 1 / 127 of the row's largest absolute value.
Int8Matrix quantize_int8(const at::Tensor& W);
at::Tensor dequantize(const Int8Matrix& W);  // returns W (out, in) in fp32

// Whether skinny_linear supports x (rows, in): on a CPU up to kMaxSkinnyRowsCpu rows in fp32 or bf16, on a GPU up to
// kMaxSkinnyRowsCuda rows in bf16 or fp16 if `in` is a multiple of 8.
bool supports_skinny_gemm(const at::Tensor& x);
// Returns x W^T (rows, out) for x (rows, in). The result has the dtype of x, or fp32 with `wide`; sums are fp32. W
// (out, in) is contiguous, in fp32 or bf16 on a CPU and in the dtype of x on a GPU. No gradient. Throws c10::Error for
// incompatible shapes.
at::Tensor skinny_linear(const at::Tensor& x, const at::Tensor& W, bool wide = false);
at::Tensor skinny_linear(const at::Tensor& x, const Int8Matrix& W);

// skinny_gemm() computes y = rms_norm(x) W^T, with one kernel on a GPU. With swiglu, the result is silu(y_1) * y_2
// instead, where y_1 and y_2 are the first and the second half of the columns of y. Requires supports_skinny_gemm(x).
struct SkinnyGemmInput {
  at::Tensor x;                 // (rows, in)
  at::Tensor norm_weight = {};  // (in) fp32; undefined: no norm
  double eps = 0;
  at::Tensor add = {};     // (rows, out) in the dtype of x, added to the rounded y; not supported with swiglu or `wide`
  at::Tensor next_W = {};  // weights of the next product, prefetched into the cache (a hint)
};
at::Tensor skinny_gemm(const SkinnyGemmInput& input, const at::Tensor& W, bool swiglu = false, bool wide = false);
// Throws c10::Error if the shapes or types are invalid.
void check_skinny_gemm(const SkinnyGemmInput& input, const at::Tensor& W);

}  // namespace lazy::ops
