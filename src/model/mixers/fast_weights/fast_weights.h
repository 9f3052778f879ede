// Fast weights: each head has a small model whose weights take a gradient step at every token. The steps are computed
// in a chunkwise parallel form. TTT (arXiv 2407.04620) and Titans (arXiv 2501.00663) use fast weights. Only the state
// between chunks is sequential; all other work is batched over chunks, sequences and heads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lazy {

// Inputs of the fast weights. Dimensions: C chunks, N sequences times heads, T tokens per chunk. The model of each head
// is M(x) = act(... act(x W_1 + b_1) ...) W_n + b_n. Without norm_weight, its loss is |M(k) - target|^2, but with a
// bounded gradient for errors longer than sqrt(dim) (see error_gradient in inner_loss.h). With norm_weight, its loss is
// 1/2 |LayerNorm(M(k)) - target|^2. In the formulas in this struct, G_s is the gradient at token s with respect to the
// weights W at the start of the chunk.
struct FastWeights {
  at::Tensor q, k, target;            // (C, N, T, dim), contiguous
  at::Tensor norm_weight, norm_bias;  // (N, 1, dim); undefined: no norm
  // The weights at token t are read_keep_t W + read_carry_t S - sum_{s <= t} read_steps_ts G_s. read_steps has the
  // shape (C, N, T, T), for C chunks, N sequences times heads, and T tokens per chunk, and is lower triangular.
  at::Tensor read_steps;
  at::Tensor read_keep, read_carry;  // (C, N, T, 1); if undefined, read_keep is 1 and S is not used
  // Factors of the update from the start of a chunk to the start of the next chunk: W is replaced by keep W + carry S -
  // sum_s steps_s G_s, and S by momentum_keep S - sum_s momentum_steps_s G_s.
  at::Tensor steps, momentum_steps;       // (C, N, T, 1)
  at::Tensor keep, carry, momentum_keep;  // (C, N, 1, 1)
  std::vector<at::Tensor> W, b, S;        // per layer: (N, in, out), (N, 1, out), (N, in, out); b or S may be empty
  bool tanh = false;                      // true: GELU with the tanh approximation; false: exact GELU
  // If true, fp32 matrix products on a GPU may use TF32. Callers set this flag if the inputs were converted from bf16.
  bool rounded = false;
  bool last_state = true;  // false: the state after the last chunk (W, b, S) is not computed
};

constexpr double kInnerNormEps = 1e-6;

// The results of fast weights. `out` contains the outputs M_t(q_t) of all tokens, (C, N, T, dim). If last_state is
// true, W, b and S are the state after the last chunk. The results can be differentiated once with respect to all
// inputs. The inputs S, read_keep, read_carry, momentum_steps, keep, carry and momentum_keep must be all defined or all
// undefined. b and S cannot be combined.
struct FastWeightsResult {
  at::Tensor out;
  std::vector<at::Tensor> W, b, S;
};
FastWeightsResult run_fast_weights(const FastWeights& in);

}  // namespace lazy

namespace lazy::fast_weights {

// to_chunks converts (batch, heads, chunks * T, ...) to (chunks, batch * heads, T, ...), contiguous. from_chunks is the
// inverse.
at::Tensor to_chunks(const at::Tensor& x, int64_t chunks);
at::Tensor from_chunks(const at::Tensor& x, int64_t batch);

// Repeats a per-head tensor (heads, 1, dim) for each sequence: (batch * heads, 1, dim).
at::Tensor for_all(const at::Tensor& of_heads, int64_t batch);

}  // namespace lazy::fast_weights
