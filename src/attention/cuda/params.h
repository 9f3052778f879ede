// What every CUDA kernel receives, by value: the Problem and its arguments in a form that device code can use.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/cuda/memory.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::cuda {

struct Params {
  Tensor q, k, v, out, d_out, d_q, d_k, d_v;
  const float *distance_bias, *tau, *sink, *alibi_slopes;
  float *lse, *stats;  // lse: written by forward, read by backward
  float *d_distance_bias, *d_tau, *d_sink, *d_alibi_slopes;
  // (batch, heads, q_length) each: center and 1 / norm of weights.cuh.
  float *row_center, *row_norm;
  float* row_state;  // Hopper's backward: see row_state of hopper_rows.cuh
  // Backward's partial sums of d_tau, d_sink, d_alibi_slopes: (3, heads, batch * row tiles).
  float* partial;
  float* bias_slabs;  // (bias_splits, heads, bias_window)
  // fp32 sums of d_q: (batch, heads, q_length, head_dim), or tiles as hopper_backward_keys.cuh says.
  float* dq_sum;

  const int32_t *cu_q, *cu_k;  // null when not packed
  int sequences, batch, q_length, k_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window, bias_splits;
  float scale, sigmoid_bias;  // sigmoid_bias NaN: -ln(visible count)
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible;
};

// Weights are probabilities, shifted or not: what hopper serves, and portable at every head size of its own.
__host__ __device__ inline bool softmax_like(Normalizer n) {
  return n == Normalizer::softmax || n == Normalizer::elastic || n == Normalizer::softmax_sink;
}

Params make_params(const Problem& p, const Forward<float>& a);
Params make_params(const Problem& p, const Backward<float>& a);

// Row tiles (or key tiles) of `size` tokens a head that any problem of this shape can need; packed documents each start
// a tile of their own.
inline int tile_count(const Params& p, int tokens, int size) {
  return (tokens + size - 1) / size + (p.cu_q ? p.sequences : 0);
}

// Throws std::runtime_error naming the kernel when the launch before it failed.
void check_launch(const char* kernel);
void check(cudaError_t status, const char* what);

constexpr int kPlainRows = 64;  // rows of a tile of the plain kernels
constexpr int kBiasTile = 64;   // distances that one block of the bias gradient serves

void plain_forward(const Params& p, cudaStream_t stream);
void plain_backward(const Params& p, cudaStream_t stream);
// d_distance_bias, from the rows' sums; no atomics.
void bias_gradient(const Params& p, cudaStream_t stream);
void sum_bias_slabs(const Params& p, cudaStream_t stream);
// d_tau, d_sink, d_alibi_slopes from `partial`, whose last axis has `tiles` entries, in a fixed order.
void reduce_partial(const Params& p, int tiles, cudaStream_t stream);

// The portable kernels: head_dim = value_dim = the name's, bf16 or fp16; softmax, elastic, softmax_sink. The backward
// writes parts of `partial`, whose last axis has `partial_step` entries.
void portable_forward_64(const Params& p, cudaStream_t stream);
void portable_forward_96(const Params& p, cudaStream_t stream);
void portable_forward_128(const Params& p, cudaStream_t stream);
void portable_forward_256(const Params& p, cudaStream_t stream);
void portable_backward_64(const Params& p, int partial_step, cudaStream_t stream);
void portable_backward_96(const Params& p, int partial_step, cudaStream_t stream);
void portable_backward_128(const Params& p, int partial_step, cudaStream_t stream);
void portable_backward_256(const Params& p, int partial_step, cudaStream_t stream);
// The same for sparsemax, entmax15, sigmoid.
void portable_forward_scored_64(const Params& p, cudaStream_t stream);
void portable_forward_scored_128(const Params& p, cudaStream_t stream);
void portable_backward_scored_64(const Params& p, int partial_step, cudaStream_t stream);
void portable_backward_scored_128(const Params& p, int partial_step, cudaStream_t stream);
// The Hopper kernels: softmax, elastic, softmax_sink, head sizes 64 and 128.
void hopper_forward_64(const Params& p, cudaStream_t stream);
void hopper_forward_128(const Params& p, cudaStream_t stream);
// The same where rows see few keys, once in the forward instead of twice: see hopper_forward_single_pass.cuh.
bool hopper_keeps(const Params& p);
void hopper_forward_single_pass(const Params& p, cudaStream_t stream);
void hopper_backward_64(const Params& p, int partial_step, cudaStream_t stream);
void hopper_backward_128(const Params& p, int partial_step, cudaStream_t stream);
constexpr int kPortableKeys = 64;        // keys of a block of the portable backward: one slab of bias sums each
constexpr int kHopperKeys = 128;         // the same of the Hopper backward
constexpr int kPortableMostBias = 2048;  // entries of the bias gradient that such a block can keep

}  // namespace lazy::kernels::cuda
