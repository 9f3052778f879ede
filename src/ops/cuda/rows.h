// CUDA kernels of the fused operators on rows; ops/rows.h is the CPU counterpart. The functions take device pointers
// and only launch work on the stream; they do not allocate memory or synchronize. Types are f32, bf16 and f16;
// arithmetic is fp32. Rows are contiguous unless a stride, in elements, is given. Results are bit-identical between
// runs and on all GPUs of one architecture. A failed launch throws std::runtime_error "lazy::OPERATION: CUDA reports
// ...".
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops::cuda {

using kernels::DType;

struct RmsNorm {
  DType type, weight_type;         // weight_type: f32 or type
  const void *x, *weight;          // x (rows, dim), weight (dim)
  const void* residual = nullptr;  // same layout as x; null: no residual, and `sum` is not written
  void *sum = nullptr, *y;
  float eps;
  int64_t rows, dim;
};
void rms_norm(const RmsNorm& arguments, cudaStream_t stream);

struct RmsNormBackward {
  DType type, weight_type;
  const void *d_y, *x, *weight;
  const void* d_sum = nullptr;  // added to d_x; may be null
  void *d_x, *d_weight;         // d_weight (dim) of weight_type
  float* parts;                 // workspace (rms_norm_parts(rows, dim), dim)
  float eps;
  int64_t rows, dim;
};
// Returns the number of partial sums of d_weight. The order of additions depends only on the shape.
int64_t rms_norm_parts(int64_t rows, int64_t dim);
void rms_norm_backward(const RmsNormBackward& arguments, cudaStream_t stream);

struct Swiglu {
  DType type;
  const void *gate, *up;  // (rows, dim) with row strides gate_stride and up_stride
  int64_t gate_stride, up_stride;
  void* y;              // output, contiguous; the backward pass also writes it, unless it is null
  const void* d_y;      // contiguous; only used by the backward pass
  void *d_gate, *d_up;  // (rows, dim) with row stride d_stride
  int64_t d_stride;
  int64_t rows, dim;
};
void swiglu(const Swiglu& arguments, cudaStream_t stream);
void swiglu_backward(const Swiglu& arguments, cudaStream_t stream);

// Quantization of x, one of several matrices that are concatenated along the columns to one 8-bit floating-point matrix
// (rows, width). x becomes the columns [first, first + dim). All of the concatenated matrices share `maximum`, which
// must be zero initially.
struct QuantizeFp8 {
  bool e5m2;  // type of the 8-bit numbers: e5m2 if true, otherwise e4m3
  int64_t rows, width;
  const void* x;  // (rows, dim) bf16 with stride x_stride
  int64_t x_stride, dim, first;
  float largest, least_maximum;
  float* maximum;      // the largest absolute value; NaN is larger than infinity
  float* scale;        // written by quantize_fp8: max(maximum, least_maximum) / largest
  void* q;             // (rows, width) or null
  void* q_transposed;  // (width, rows) or null
};
void largest_magnitude(const QuantizeFp8& arguments, cudaStream_t stream);
void quantize_fp8(const QuantizeFp8& arguments, cudaStream_t stream);

// Cosines and sines (positions, pairs) in fp32, multiplied by attention_factor. The angles were computed in fp64.
struct RopeTable {
  const float *cos, *sin;
  const double* frequency;  // (pairs) in radians per position
  double attention_factor;
  int64_t positions, pairs;
};

struct Rope {
  DType type;
  const void* x;  // (batch, length, heads, dim); the last axis is contiguous
  int64_t batch_stride, token_stride, head_stride;
  void* y;           // (batch, length, heads, dim); the heads of a token are contiguous
  int64_t y_stride;  // distance between consecutive tokens, also across sequences, in elements
  int64_t batch, length, heads, dim;
  RopeTable table;  // rotates the first 2 * table.pairs dimensions; the remaining dimensions are copied
  bool interleaved, inverse;
  int64_t offset = 0;  // without given positions, token t has position offset + t, which must be in the table
  // Position of each token, (batch, length) with the strides below, or null. Angles that are not in the table are
  // computed in fp64; a negative position gives NaN.
  const int32_t* places32 = nullptr;
  const int64_t* places64 = nullptr;
  int64_t places_batch_stride = 0, places_token_stride = 0;
};
void rope(const Rope& arguments, cudaStream_t stream);

// Counts the labels of a loss and checks their range.
struct Labels {
  const int64_t* label;  // (tokens)
  int64_t tokens, vocabulary, ignore_index;
  double* counted;  // number of tokens whose label is not ignore_index
  float* scale;     // 1 / max(counted, 1) / gradient_scale
  float gradient_scale;
  bool* valid;  // whether every label is ignore_index or from 0 to vocabulary - 1
};
void count_labels(const Labels& arguments, cudaStream_t stream);

struct CrossEntropy {
  float* logits;  // (tokens, vocabulary) with stride `stride`, a multiple of 4; 16-byte aligned
  int64_t stride, tokens, vocabulary;
  const int64_t* label;
  int64_t ignore_index;
  float* log_prob;  // (tokens): log probability of the label; 0 if it is ignored, NaN if it is invalid
  bool* correct;
  // If `gradient` is set, row t of logits is overwritten by gradient_scale * (softmax - onehot(label)) in `type`, in
  // the first `vocabulary` elements of this type. The gradient is zero for ignored tokens.
  bool gradient;
  DType type;
  float gradient_scale;
};
void cross_entropy(const CrossEntropy& arguments, cudaStream_t stream);

// loss = -sum(log_prob) / counted, summed in fp64.
void mean_loss(const float* log_prob, int64_t tokens, const double* counted, float* loss, cudaStream_t stream);

}  // namespace lazy::ops::cuda
