// Products of a few rows with a weight matrix, at the pace at which memory gives the weights. Raw pointers, fp32
// arithmetic, instruction set chosen at run time.
#pragma once
#include <cstdint>

namespace lazy::ops::few_rows {

enum class WeightType { f32, bf16, int8 };

// Columns [begin, end) of y (rows, out) = x (rows, in) W^T, with W (out, in) contiguous and of `type`; for int8, row n
// of W stands for scale[n] times its numbers. A column of a row is one sum in the order of `in`: its bits do not depend
// on how many rows or columns there are.
void product(const float* x, int64_t rows, WeightType type, const void* W, const float* scale, int64_t in, float* y,
             int64_t out, int64_t begin, int64_t end);

}  // namespace lazy::ops::few_rows
