// What the kernels of fast weights (model/mixers/fast_weights) are given: fp32 pointers of one device, every tensor
// contiguous, rows at multiples of 16 bytes. Keys, values and a layer's narrow side have 64 numbers.
//
// Letters: C chunks, N sequences times heads, T tokens of a chunk, H the hidden width of two layers.
#pragma once
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops {

struct FastWeightsLayer {
  // State at the start of each chunk: (C, N, in, out), (C, N, out), (C, N, in, out). b or S is null. The first chunk's
  // b is given there, its W and S apart: kernels may leave unset where they would lie.
  float *W, *b, *S;
  const float *W_start, *S_start;
  float *W_end, *b_end, *S_end;  // the forward pass: (N, ...) after the last chunk; null: not wanted
  float *g, *z;                  // (C, N, T, out): see SavedActivations
  // (N, ...): the gradients with respect to the state before the first chunk, which the backward pass leaves, and after
  // the last one, which it is given; null: they are zero. Those of b it is given in their place.
  float *d_W, *d_b, *d_S;
  const float *d_W_end, *d_S_end;
};

struct FastWeightsProblem {
  int64_t C, N, T, H;            // H 0: one layer; otherwise a multiple of 64
  bool momentum;                 // each layer has S, otherwise b
  bool tanh;                     // GELU's approximation
  bool for_backward;             // without, the forward pass may leave unset what only the backward pass reads
  FastWeightsLayer first, last;  // first: null with one layer

  const float *q, *k, *target;                // (C, N, T, 64); q and k with momentum: of unit length or shorter
  const float *norm_weight, *norm_bias;       // (N, 64); null: the bounded error
  const float* read_steps;                    // (C, N, T, T)
  const float *read_keep, *read_carry;        // (C, N, T), with momentum, like the next three
  const float *steps, *momentum_steps;        // (C, N, T); the first one always
  const float *keep, *carry, *momentum_keep;  // (C, N)
  float *u, *t, *x;  // two layers: (C, N, T, H), the last layer's input, its gradient, the first layer's output at q
  float* overlap;    // (C, N, T, T): products of the last layer's inputs at q and k, one more with a bias
  float* out;        // (C, N, T, 64)
  void* kept;        // (C, N, kept_bytes), at a multiple of 16 bytes; null without for_backward: see ops/fast_weights.h

  // The backward pass. Gradients are like what they belong to.
  const float* d_out;
  float *d_q, *d_k, *d_target, *d_norm_weight, *d_norm_bias, *d_read_steps, *d_read_keep, *d_read_carry, *d_steps,
      *d_momentum_steps, *d_keep, *d_carry, *d_momentum_keep;
  float *d_u, *d_z;  // two layers: (N, T, H), workspace
};

// The factors of fast weights with momentum from the gates of their tokens: see model/mixers/titans/gate_products.h,
// whose names these are. fp32, contiguous; the chunks are those of all sequences and heads. The backward pass is given
// the gradients with respect to the products in their place.
constexpr int kMemoryTokens = 64;  // of a chunk, T

struct MemoryFactors {
  int64_t chunks;
  const float *step, *log_momentum, *log_keep;             // (chunks, T)
  float* read_steps;                                       // (chunks, T, T)
  float *read_keep, *read_carry, *steps, *momentum_steps;  // (chunks, T)
  float *keep, *carry, *momentum_keep;                     // (chunks)
  float *d_step, *d_log_momentum, *d_log_keep;             // (chunks, T): the backward pass
};

// Tokens of Titans' memory: texts of chunks of T tokens, whose heads have 64 numbers. What lacks in the chunks of a
// text's `tokens` are zeros.
struct MemoryShape {
  int64_t chunks, batch, heads, T, tokens;
};
struct MemoryStream {
  const void* at;
  int64_t text, head, token;  // from one to the next, in elements
};

// From projections to what fast weights are given: q and k of unit length, and the target v, or v - k (residual). The
// backward pass is given the gradients with respect to these in their place.
struct MemoryTokens {
  MemoryShape shape;
  kernels::DType type;  // of q, k, v and their gradients
  MemoryStream q, k, v;
  bool residual;
  float *unit_q, *unit_k, *target;  // (chunks, batch * heads, T, 64)
  void *d_q, *d_k, *d_v;            // (batch, tokens, heads, 64): the backward pass
};

// From the memory's outputs z at x to x + LayerNorm(z) norm.
struct MemoryOutputs {
  MemoryShape shape;
  kernels::DType type;  // of out and d_out
  const float *z, *x;   // (chunks, batch * heads, T, 64)
  const float* norm;    // (heads, 64)
  void* out;            // (batch, tokens, heads, 64)
  MemoryStream d_out;   // the backward pass
  float *d_z, *d_x;
  float* d_norm;  // (chunks, batch * heads, 64): to be added
};

}  // namespace lazy::ops
