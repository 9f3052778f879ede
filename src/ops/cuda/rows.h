// Row kernels of the fused operators on NVIDIA GPUs: what ops/rows.h is for the CPU. Device pointers; everything is
// queued on the stream, nothing is allocated and nothing waits. Types f32, bf16 and f16, arithmetic in fp32. Rows are
// contiguous unless a stride, in elements, is given. Results are bit-identical from run to run and on every GPU of one
// architecture. std::runtime_error "lazy::OPERATION: CUDA reports ..." when a launch is refused.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops::cuda {

using kernels::DType;

struct RmsNorm {
  DType type, weight_type;         // weight_type: f32 or type
  const void *x, *weight;          // (rows, dim), (dim)
  const void* residual = nullptr;  // like x, or null: then `sum` is not written
  void *sum = nullptr, *y;
  float eps;
  int64_t rows, dim;
};
void rms_norm(const RmsNorm& arguments, cudaStream_t stream);

struct RmsNormBackward {
  DType type, weight_type;
  const void *d_y, *x, *weight;
  const void* d_sum = nullptr;  // added to d_x when it is given
  void *d_x, *d_weight;         // d_weight (dim) of weight_type
  float* parts;                 // memory for rms_norm_parts(rows, dim) rows of dim numbers
  float eps;
  int64_t rows, dim;
};
// In how many parts d_weight is summed. The order of additions follows from the shape alone.
int64_t rms_norm_parts(int64_t rows, int64_t dim);
void rms_norm_backward(const RmsNormBackward& arguments, cudaStream_t stream);

struct Swiglu {
  DType type;
  const void *gate, *up;  // (rows, dim) at steps of their strides
  int64_t gate_stride, up_stride;
  void* y;              // contiguous; the backward writes it too, unless it is null
  const void* d_y;      // backward, contiguous
  void *d_gate, *d_up;  // (rows, dim) at steps of d_stride
  int64_t d_stride;
  int64_t rows, dim;
};
void swiglu(const Swiglu& arguments, cudaStream_t stream);
void swiglu_backward(const Swiglu& arguments, cudaStream_t stream);

// One of the matrices that lie side by side in a matrix (rows, width) of 8-bit floating point: columns [first, first +
// dim). `maximum` is common to all, zero at first.
struct QuantizeFp8 {
  bool e5m2;  // else e4m3
  int64_t rows, width;
  const void* x;  // (rows, dim) bf16 at steps of x_stride
  int64_t x_stride, dim, first;
  float largest, least_maximum;
  float* maximum;      // the largest magnitude; bits of NaN count as larger than infinity's
  float* scale;        // max(maximum, least_maximum) / largest, written by quantize_fp8
  void* q;             // (rows, width) or null
  void* q_transposed;  // (width, rows) or null
};
void largest_magnitude(const QuantizeFp8& arguments, cudaStream_t stream);
void quantize_fp8(const QuantizeFp8& arguments, cudaStream_t stream);

// Cosines and sines (positions, pairs) in fp32, both times attention_factor; angles in fp64.
struct RopeTable {
  const float *cos, *sin;
  const double* frequency;  // (pairs) radians a position
  double attention_factor;
  int64_t positions, pairs;
};

struct Rope {
  DType type;
  const void* x;  // (batch, length, heads, dim); the last axis is contiguous
  int64_t batch_stride, token_stride, head_stride;
  void* y;           // the same, a token's heads one behind the other
  int64_t y_stride;  // of tokens, the batch's as well
  int64_t batch, length, heads, dim;
  RopeTable table;  // of the first 2 table.pairs dimensions; the others are copied
  bool interleaved, inverse;
  int64_t offset = 0;  // token t stands at offset + t, which the table holds, unless places are given:
  // Positions by token, or null. What the table does not hold is computed in fp64; a negative position gives NaN.
  const int32_t* places32 = nullptr;
  const int64_t* places64 = nullptr;
  int64_t places_batch_stride = 0, places_token_stride = 0;
};
void rope(const Rope& arguments, cudaStream_t stream);

// The labels of a loss, read once.
struct Labels {
  const int64_t* label;  // (tokens)
  int64_t tokens, vocabulary, ignore_index;
  double* counted;  // tokens whose label is not ignore_index
  float* scale;     // 1 / max(counted, 1) / gradient_scale
  float gradient_scale;
  bool* valid;  // every label is ignore_index or from 0 to vocabulary - 1
};
void count_labels(const Labels& arguments, cudaStream_t stream);

struct CrossEntropy {
  float* logits;  // (tokens, vocabulary) at steps of `stride`, a multiple of 4; 16-byte aligned
  int64_t stride, tokens, vocabulary;
  const int64_t* label;
  int64_t ignore_index;
  float* log_prob;  // 0 where ignored, NaN at an invalid label
  bool* correct;
  // With a gradient, row t of logits becomes gradient_scale (softmax - onehot(label)) in `type`: its first `vocabulary`
  // elements of that type. Zeros where ignored.
  bool gradient;
  DType type;
  float gradient_scale;
};
void cross_entropy(const CrossEntropy& arguments, cudaStream_t stream);

// loss = -sum(log_prob) / counted, summed in fp64.
void mean_loss(const float* log_prob, int64_t tokens, const double* counted, float* loss, cudaStream_t stream);

}  // namespace lazy::ops::cuda
