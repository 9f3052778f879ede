// Arguments of the kernels of fast weights (model/mixers/fast_weights): fp32 pointers on one device. Every tensor is
// contiguous, with rows aligned to 16 bytes. Keys and values, and thus the inputs and outputs of the model, have 64
// elements.
//
// C: chunks, N: sequences times heads, T: tokens per chunk, H: hidden width of a two-layer model, a multiple of 64.
#pragma once
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops {

struct FastWeightsLayer {
  // State at the start of each chunk: weights W (C, N, in, out), bias b (C, N, out) and momentum S (C, N, in, out).
  // Either b or S is null. The caller writes the bias of the first chunk to `b`, and passes the weights and the
  // momentum of the first chunk as W_start and S_start. The kernels may leave the entries of the first chunk in W and S
  // unset.
  float *W, *b, *S;
  const float *W_start, *S_start;
  float *W_end, *b_end, *S_end;  // written by the forward pass: (N, ...) after the last chunk; null: not requested
  float *g, *z;                  // (C, N, T, out), for input k: output z, and gradient g of the inner loss at z
  // Gradients with respect to the state, (N, ...). The backward pass writes d_W, d_b and d_S for the state before the
  // first chunk. It reads d_W_end and d_S_end for the state after the last chunk; null means zero. d_b is updated in
  // place: on entry it contains the gradient for the state after the last chunk.
  float *d_W, *d_b, *d_S;
  const float *d_W_end, *d_S_end;
};

struct FastWeightsProblem {
  int64_t C, N, T, H;            // chunks, sequences times heads, tokens per chunk, hidden width (0: one layer)
  bool momentum;                 // true: each layer has a momentum S; false: each layer has a bias b
  bool tanh;                     // true: GELU is computed with the tanh approximation
  bool for_backward;             // if false, the forward pass may omit outputs that only the backward pass reads
  FastWeightsLayer first, last;  // the pointers in `first` are null with one layer

  const float *q, *k, *target;                // (C, N, T, 64); with momentum, q and k have a length of at most 1
  const float *norm_weight, *norm_bias;       // (N, 64); null: no LayerNorm; the inner-loss gradient is bounded instead
  const float* read_steps;                    // (C, N, T, T): factors of the inner-loss gradients in the outputs
  const float *read_keep, *read_carry;        // (C, N, T); only with momentum
  const float *steps, *momentum_steps;        // (C, N, T); momentum_steps only with momentum
  const float *keep, *carry, *momentum_keep;  // (C, N); only with momentum
  float *u, *t, *x;  // two layers only, (C, N, T, H): last layer's input, its gradient, first layer's output for q
  float* overlap;    // (C, N, T, T): inner products of the last layer's inputs for q and for k, plus 1 with a bias
  float* out;        // (C, N, T, 64): outputs for q
  void* kept;        // (C, N, kept_bytes), see ops/fast_weights.h; aligned to 16 bytes; null without for_backward

  // Arguments of the backward pass. Each gradient has the shape of its tensor.
  const float* d_out;
  float *d_q, *d_k, *d_target, *d_norm_weight, *d_norm_bias, *d_read_steps, *d_read_keep, *d_read_carry, *d_steps,
      *d_momentum_steps, *d_keep, *d_carry, *d_momentum_keep;
  float *d_u, *d_z;  // workspace for two layers, (N, T, H)
};

// Arguments of the kernels that compute the factors of fast weights (the products of the gates of all tokens in a
// chunk): see model/mixers/titans/gate_products.h, which defines the names. All tensors are fp32 and contiguous.
// `chunks` is the number of chunks of all sequences and heads. In the backward pass, the members for the factors
// (read_steps to momentum_keep) contain the gradients with respect to the factors.
constexpr int kMemoryTokens = 64;  // T, the number of tokens per chunk

struct MemoryFactors {
  int64_t chunks;
  const float *step, *log_momentum, *log_keep;             // (chunks, T)
  float* read_steps;                                       // (chunks, T, T)
  float *read_keep, *read_carry, *steps, *momentum_steps;  // (chunks, T)
  float *keep, *carry, *momentum_keep;                     // (chunks)
  float *d_step, *d_log_momentum, *d_log_keep;             // (chunks, T): written by the backward pass
};

// Shape of the inputs of the Titans memory: `batch` sequences of `tokens` tokens, padded with zeros to `chunks` chunks
// of T tokens. Each head has 64 elements.
struct MemoryShape {
  int64_t chunks, batch, heads, T, tokens;
};
struct MemoryStream {
  const void* at;
  int64_t text, head, token;  // strides of the sequence, head and token axes, in elements
};

// Arguments of the kernels that convert projections to the inputs of fast weights: q and k are normalized to unit
// length, and the target is v, or v - k with `residual`. In the backward pass, unit_q, unit_k and target contain the
// gradients with respect to these inputs.
struct MemoryTokens {
  MemoryShape shape;
  kernels::DType type;  // dtype of q, k, v and their gradients
  MemoryStream q, k, v;
  bool residual;
  float *unit_q, *unit_k, *target;  // (chunks, batch * heads, T, 64)
  void *d_q, *d_k, *d_v;            // (batch, tokens, heads, 64): written by the backward pass
};

// Arguments of the kernels that compute x + LayerNorm(z) * norm, where z is the output of the memory's MLP at x.
struct MemoryOutputs {
  MemoryShape shape;
  kernels::DType type;  // dtype of out and d_out
  const float *z, *x;   // (chunks, batch * heads, T, 64)
  const float* norm;    // (heads, 64): weight of the norm
  void* out;            // (batch, tokens, heads, 64)
  MemoryStream d_out;   // read by the backward pass
  float *d_z, *d_x;
  float* d_norm;  // (chunks, batch * heads, 64): partial sums, which the caller adds
};

}  // namespace lazy::ops
