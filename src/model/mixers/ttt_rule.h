// The test-time training recurrence (TTT, arXiv 2407.04620). The hidden state of each head is a small model f. It is
// updated by one gradient step per mini-batch of tokens, with the loss 1/2 |f(k) - (v - k)|^2, and is evaluated at q.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "model/mixers/packed_layouts.h"

namespace lazy {

// The inner model f(x) = LayerNorm(z(x)), where z is linear (one layer) or an MLP with tanh-GELU (two layers). Layer n
// has the weights W[n] (batch, heads, in, out) and the bias b[n] (batch, heads, 1, out).
struct TttWeights {
  std::vector<at::Tensor> W, b;
};

struct TttInputs {
  at::Tensor q, k, v;                 // (batch, length, heads, dim), q and k after RoPE; may be bf16 if `rounded`
  at::Tensor rate;                    // (batch, length, heads): learning rate of each token
  at::Tensor position_scale;          // (tokens per mini-batch): max(1 / t + theta_t, 0) for token t
  at::Tensor norm_weight, norm_bias;  // (heads, dim): parameters of the inner LayerNorm, not updated online
  bool rounded = false;               // true: matrix products may use TF32 (as FastWeights::rounded)
  bool last_state = true;             // if false, the final state is not computed; do not use the returned state
};

// The recurrent state. Its size does not depend on the length.
struct TttState {
  TttWeights start;            // weights at the start of the current mini-batch
  TttWeights sums;             // sum of rate_s * gradient at token s, over the tokens s of the mini-batch so far
  int64_t chunk_position = 0;  // number of tokens of the current mini-batch that were processed so far
};

constexpr double kTttNormEps = 1e-6;

// Returns the state before the first token. `weights` has the shapes (heads, in, out) and (heads, 1, out), without the
// batch dimension.
TttState initial_ttt_state(const TttWeights& weights, int64_t batch);

// tensors() converts a state to a list: W and b of every layer of `start`, then of `sums`. ttt_state() is the inverse;
// its argument `seen` becomes TttState::chunk_position.
std::vector<at::Tensor> tensors(const TttState& state);
TttState ttt_state(const std::vector<at::Tensor>& tensors, int64_t seen);

// Returns q + f_t(q), (batch, length, heads, dim), and the state after the last token. Here f_t is the inner model with
// the weights at the t-th token of a mini-batch, which are
//  start - position_scale_t * sum_{s <= t} rate_s G_s.
// G_s is the gradient of 1/2 |f(k_s) - (v_s - k_s)|^2 at the weights `start`, the weights at the start of the
// mini-batch.
//
// If cu_seqlens (documents + 1) is defined, each document starts from `state`, which must be an initial state and is
// returned unchanged. Inputs and state have the same dtype, float64 or fp32, except that q, k and v may be bf16:
// kernels then compute in bf16 (see ops/ttt_problem.h), and all other operations are in fp32.
//
// The function uses the dual form per mini-batch, which does not materialize per-token weights. The outputs are
// differentiable with respect to all inputs, including the effect of the inputs on the inner gradient steps.
std::tuple<at::Tensor, TttState> ttt_chunks(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens = {});

// Returns the same outputs as ttt_chunks, but no state, for packed documents. Documents are padded to whole
// mini-batches and processed in the batches of `documents`.
at::Tensor ttt_packed(const TttInputs& in, const TttState& state, const DocumentBatches& documents);

}  // namespace lazy
