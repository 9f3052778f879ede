// Arguments of the kernels of TTT (model/mixers/ttt_kernels.h): pointers on one device. Per-token tensors may have any
// stride between tokens, but the elements of a token are contiguous. All other tensors are fp32 and contiguous.
//
// C: chunks of 16 tokens, N: sequences times heads, H: hidden width of a two-layer model. Each head has 64 elements.
#pragma once
#include <cstdint>

namespace lazy::ops {

// A tensor (sequences, tokens, heads, ...), given by a pointer and the strides of its axes in elements. Rows of 64
// elements are aligned to 16 bytes.
struct TttTokens {
  void* at;
  int64_t sequence, token, head;
};

struct TttLayer {
  // State before the first chunk: weights W (N, in, out) and bias b (N, out). With one_state, the shapes are (heads,
  // ...), and all sequences share the state.
  const float *W, *b;
  // State after the last chunk, (N, ...), written by the forward pass; null: not requested. With one layer, the
  // backward pass starts from this state and reconstructs the states of all chunks from it, in reverse order.
  float *W_end, *b_end;
  // Gradients with respect to the state, (N, ...), which the backward pass updates in place. On entry, they are the
  // gradients for the state after the last chunk; on return, for the state before the first chunk.
  float *d_W, *d_b;
};

struct TttProblem {
  int64_t C, N, heads, H;  // chunks, sequences times heads, heads, hidden width (0: one layer)
  bool bf16;               // dtype of q, k, v, out and their gradients: bf16 if true, otherwise fp32
  bool one_state;
  bool for_backward;  // true: the forward pass saves the tensors that the backward pass reads
  TttTokens q, k, v;
  TttTokens rate;                        // fp32: learning rate of each token
  const float* scale;                    // (16): position_scale of TttInputs, one number per token of a chunk
  const float *norm_weight, *norm_bias;  // (heads, 64): parameters of the inner LayerNorm
  TttLayer first, last;                  // the pointers in `first` are null with one layer
  TttTokens out;                         // q + LayerNorm(f(q)); with two layers, null means not requested

  float* g;  // (N, C, 16, 64): gradients of the inner loss with respect to the output of the last layer
  // Two layers only, (N, C, 16, H): the first layer's output for k (z) and for q (x), and the gradient with respect to
  // the input of the last layer (t).
  float *z, *x, *t;
  float *y, *y_q;           // (N, C, 16, 64): output of the last layer for k and for q
  float *W_first, *W_last;  // (N, C, in, out): weights at the start of every chunk
  // (N, C, 16, 16): inner products of the last layer's inputs for q and for k, plus 1 for the bias
  float* overlap;

  // Arguments of the backward pass. Each gradient has the shape of its tensor, but gradients of parameters that all
  // sequences share have one entry per sequence and head (N entries).
  TttTokens d_out, d_q, d_k, d_v, d_rate;
  float *d_scale, *d_norm_weight, *d_norm_bias;
};

// LayerNorm of bf16 rows; a row contains all heads of a token. All tensors are contiguous and aligned to 16 bytes.
struct TttNorm {
  int64_t rows, dim;
  float eps;
  const float *weight, *bias;  // (dim): parameters of the LayerNorm
  const void* x;
  void* y;
  // Arguments of the backward pass. parts (part_count, 2, dim): partial sums of the gradients with respect to weight
  // and bias.
  const void* d_y;
  void* d_x;
  float* parts;
  int64_t part_count;
};

}  // namespace lazy::ops
