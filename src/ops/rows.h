// CPU kernels of the fused operators, which process rows given by raw pointers. The arithmetic is in fp32, and the
// instruction set is chosen at run time. Rows are contiguous unless a stride is given. `type` is f32 or bf16.
#pragma once
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops::rows {

using kernels::DType;

// Normalizes rows [begin, end) of x (rows, dim). If `residual` is not null, writes x + residual to `sum` and normalizes
// this sum; otherwise both pointers are null.
void rms_norm(DType type, const void* x, const void* residual, void* sum, const float* weight, float eps, void* y,
              int64_t begin, int64_t end, int64_t dim);
// Writes the gradient with respect to x, plus d_sum if it is not null, to d_x. Adds the gradient with respect to the
// weight to d_weight (dim).
void rms_norm_backward(DType type, const void* d_y, const void* x, const float* weight, float eps, const void* d_sum,
                       void* d_x, float* d_weight, int64_t begin, int64_t end, int64_t dim);

void swiglu(DType type, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y,
            int64_t begin, int64_t end, int64_t dim);
// The rows of d_gate and d_up have the stride d_stride.
void swiglu_backward(DType type, const void* d_y, const void* gate, int64_t gate_stride, const void* up,
                     int64_t up_stride, void* d_gate, void* d_up, int64_t d_stride, int64_t begin, int64_t end,
                     int64_t dim);

// Applies RoPE to the heads of one token. x_stride is the distance between heads in elements. cos and sin (rotary / 2)
// rotate the first `rotary` dimensions, in pairs (n, n + rotary / 2), or (2n, 2n + 1) if interleaved. The other
// dimensions are copied. direction: 1, or -1 for the inverse rotation.
void rope(DType type, const void* x, int64_t x_offset, int64_t x_stride, const float* cos, const float* sin,
          float direction, int64_t rotary, bool interleaved, void* y, int64_t y_offset, int64_t heads, int64_t dim);

struct CrossEntropy {
  float log_prob = 0;
  bool correct = false;
};
// Computes the log-probability of `label`, and whether the label has the largest logit, for one row of logits. If
// gradient_scale is not 0, also overwrites the row with gradient_scale * (softmax - onehot(label)).
CrossEntropy cross_entropy(float* logits, int64_t vocabulary, int64_t label, float gradient_scale);

}  // namespace lazy::ops::rows
