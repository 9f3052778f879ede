// The test-time training recurrence (TTT, arXiv 2407.04620): each head's hidden state is a small model, updated by one
// gradient step per mini-batch of tokens on the loss 1/2 |f(k) - (v - k)|^2 and evaluated at q.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "model/mixers/packed_layouts.h"

namespace lazy {

// The inner model f(x) = LayerNorm(z(x)): z is linear (one layer) or an MLP with tanh-GELU (two). Layer n: W[n]
// (batch, heads, in, out), b[n] (batch, heads, 1, out).
struct TttWeights {
  std::vector<at::Tensor> W, b;
};

struct TttInputs {
  at::Tensor q, k, v;                 // (batch, length, heads, dim), q and k after RoPE; with rounded also bf16
  at::Tensor rate;                    // (batch, length, heads): learning rate of each token
  at::Tensor position_scale;          // (mini-batch): max(1 / t + theta_t, 0) of the t-th token of a mini-batch
  at::Tensor norm_weight, norm_bias;  // (heads, dim): LayerNorm of the inner model, not updated online
  bool rounded = false;               // see FastWeights
  bool last_state = true;             // false: the returned state is not the one after the last token
};

// The recurrent state; its size does not depend on the length.
struct TttState {
  TttWeights start;            // at the start of the current mini-batch
  TttWeights sums;             // sum of rate_s times the gradient of token s, over the mini-batch's tokens so far
  int64_t chunk_position = 0;  // number of tokens seen of the current mini-batch
};

constexpr double kTttNormEps = 1e-6;

// The state before the first token. weights: without the batch dimension, (heads, in, out) and (heads, 1, out).
TttState initial_ttt_state(const TttWeights& weights, int64_t batch);

// Flattens a state to a list (W, b of every layer of `start`, then of `sums`) and back.
std::vector<at::Tensor> tensors(const TttState& state);
TttState ttt_state(const std::vector<at::Tensor>& tensors, int64_t seen);

// q + f_t(q), (batch, length, heads, dim), and the state after the last token. Gradients G_s are those of
// 1/2 |f(k) - (v - k)|^2 at the mini-batch's start. The weights at its t-th token are
//   start - position_scale_t * sum_{s <= t} rate_s G_s.
// cu_seqlens (documents + 1), optional: each document starts from `state`, which must be an initial state and is
// returned unchanged. Inputs and state have the same dtype, float64 or fp32, but for q, k and v in bf16; then so is
// what kernels compute (see ops/ttt_problem.h), and the rest is fp32.
//
// Uses the dual form per mini-batch, which does not materialize per-token weights. Differentiable through the inner
// steps.
std::tuple<at::Tensor, TttState> ttt_chunks(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens = {});

// The outputs only, for packed documents laid out in batches of whole mini-batches.
at::Tensor ttt_packed(const TttInputs& in, const TttState& state, const DocumentBatches& documents);

}  // namespace lazy
