// What the kernels of TTT (model/mixers/ttt_kernels.h) are given: pointers of one device. Tokens are read and written
// where they lie, the numbers of one side by side; everything else is fp32 and contiguous.
//
// Letters: C chunks of 16 tokens, N sequences times heads, H the hidden width of two layers. Heads have 64 numbers.
#pragma once
#include <cstdint>

namespace lazy::ops {

// (sequences, tokens, heads, ...), with the numbers from one to the next. Rows of 64 are at multiples of 16 bytes.
struct TttTokens {
  void* at;
  int64_t sequence, token, head;
};

struct TttLayer {
  // The state before the first chunk: (N, in, out), (N, out), or with one_state (heads, ...) for every sequence.
  const float *W, *b;
  // After the last chunk, (N, ...). The forward pass leaves it; null: not wanted. One layer's backward pass starts from
  // it, and goes back to the state of every chunk.
  float *W_end, *b_end;
  // (N, ...): the backward pass is given the gradients with respect to the state after the last chunk, and leaves those
  // with respect to the state before the first.
  float *d_W, *d_b;
};

struct TttProblem {
  int64_t C, N, heads, H;  // H 0: one layer
  bool bf16;               // q, k, v, out and their gradients; otherwise fp32
  bool one_state;
  bool for_backward;  // the forward pass leaves what the backward pass reads
  TttTokens q, k, v;
  TttTokens rate;                        // a number a token, fp32
  const float* scale;                    // (16), of a chunk's tokens
  const float *norm_weight, *norm_bias;  // (heads, 64)
  TttLayer first, last;                  // first: null with one layer
  TttTokens out;                         // q + LayerNorm(f(q)); of two layers null: not wanted

  float* g;  // (N, C, 16, 64): the inner gradients by the last layer's output
  // Two layers, like g with rows of H: the first layer's output at k and at q, the gradient by the last one's input.
  float *z, *x, *t;
  float *y, *y_q;           // (N, C, 16, 64): the last layer's output at k and at q
  float *W_first, *W_last;  // (N, C, in, out): at every chunk's start
  float* overlap;           // (N, C, 16, 16): products of the last layer's inputs at q and k, one more for the bias

  // The backward pass. Gradients are like what they belong to, those by what all sequences share for each of N.
  TttTokens d_out, d_q, d_k, d_v, d_rate;
  float *d_scale, *d_norm_weight, *d_norm_bias;
};

// The LayerNorm after all heads: rows of bf16. Everything is contiguous and aligned to 16 bytes.
struct TttNorm {
  int64_t rows, dim;
  float eps;
  const float *weight, *bias;  // (dim)
  const void* x;
  void* y;
  // The backward pass. parts: (part_count, 2, dim), what adds up to the gradients by weight and bias.
  const void* d_y;
  void* d_x;
  float* parts;
  int64_t part_count;
};

}  // namespace lazy::ops
