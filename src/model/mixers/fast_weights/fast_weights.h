// Fast weights: per-head weights that take a gradient step at every token, for many chunks at once. Shared by TTT
// (arXiv 2407.04620) and Titans (arXiv 2501.00663). Only what one chunk passes to the next runs chunk by chunk;
// everything else is batched over all chunks, sequences and heads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lazy {

// C: chunks, N: sequences times heads, T: tokens of a chunk. The model of a head is M(x) = act(... act(x W_1 + b_1)
// ...) W_n + b_n; without norm_weight it learns to make |M(k) - target|^2 small, long errors bounded
// (fast_weights/bounded_error.h); with it, to make 1/2 |LayerNorm(M(k)) - target|^2 small. G_s: the gradient at token
// s, at the weights W of the chunk's start.
struct FastWeights {
  at::Tensor q, k, target;            // (C, N, T, dim), contiguous
  at::Tensor norm_weight, norm_bias;  // (N, 1, dim); undefined: none
  // The weights that token t is read with: read_keep_t W + read_carry_t S - sum_{s <= t} read_steps_ts G_s.
  at::Tensor read_steps;             // (C, N, T, T), lower triangular
  at::Tensor read_keep, read_carry;  // (C, N, T, 1); undefined: 1, and no S
  // Those of the next chunk: keep W + carry S - sum_s steps_s G_s, and S becomes momentum_keep S - sum_s
  // momentum_steps_s G_s.
  at::Tensor steps, momentum_steps;       // (C, N, T, 1)
  at::Tensor keep, carry, momentum_keep;  // (C, N, 1, 1)
  std::vector<at::Tensor> W, b, S;        // a layer each: (N, in, out), (N, 1, out), (N, in, out); b or S empty: none
  bool tanh = false;                      // GELU by its approximation with tanh; otherwise exact
  // On a GPU, products of fp32 numbers rounded to tf32's ten bits: for inputs that have been bf16.
  bool rounded = false;
  bool last_state = true;  // false: W, b and S after the last chunk are not asked for, and not computed
};

constexpr double kInnerNormEps = 1e-6;

// M_t(q_t) of every token, (C, N, T, dim), and W, b, S after the last chunk, if asked for. Differentiable once in all
// that goes in. Either all of S and of the coefficients beside the steps are there, or none; b only without S.
struct FastWeightsResult {
  at::Tensor out;
  std::vector<at::Tensor> W, b, S;
};
FastWeightsResult run_fast_weights(const FastWeights& in);

}  // namespace lazy

namespace lazy::fast_weights {

// (batch, heads, chunks * T, ...) -> (chunks, batch * heads, T, ...), contiguous, and back.
at::Tensor to_chunks(const at::Tensor& x, int64_t chunks);
at::Tensor from_chunks(const at::Tensor& x, int64_t batch);

// What the heads have, (heads, 1, dim), for those of every sequence: (batch * heads, 1, dim).
at::Tensor for_all(const at::Tensor& of_heads, int64_t batch);

}  // namespace lazy::fast_weights
