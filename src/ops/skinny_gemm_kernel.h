// CPU kernels of the skinny GEMM: a small batch of rows times a weight matrix, bound by memory bandwidth. The kernels
// use raw pointers and fp32 arithmetic; the instruction set is chosen at run time.
#pragma once
#include <cstdint>

namespace lazy::ops::skinny {

enum class WeightType { f32, bf16, int8 };

// Computes columns [begin, end) of y (rows, out) = x (rows, in) W^T, with W (out, in) contiguous and of `type`. For
// int8, row n of W is multiplied by scale[n]. Each element of y is one sum over `in` in a fixed order, so its bits do
// not depend on the number of rows and columns.
void product(const float* x, int64_t rows, WeightType type, const void* W, const float* scale, int64_t in, float* y,
             int64_t out, int64_t begin, int64_t end);

}  // namespace lazy::ops::skinny
