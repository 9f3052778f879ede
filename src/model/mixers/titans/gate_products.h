// Products of the gates of a span of tokens. The neural memory of Titans uses them as factors of the gradient steps, of
// the momentum and of the weights.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// The memory's weights M and momentum S at each of T tokens are linear combinations of their values at the start and of
// the gradients G at the T tokens: M_t = read_keep_t M + read_carry_t S - sum_{s <= t} read_steps_ts G_s. After the
// last token, M is keep M + carry S - sum_s steps_s G_s, and S is momentum_keep S - sum_s momentum_steps_s G_s.
struct GateProducts {
  at::Tensor read_steps;                  // (..., T, T), lower triangular
  at::Tensor read_keep, read_carry;       // (..., T, 1)
  at::Tensor steps, momentum_steps;       // (..., T, 1)
  at::Tensor keep, carry, momentum_keep;  // (..., 1, 1)
};

// step, log_momentum and log_keep (..., T) are defined in MemoryInputs. If `rounded` (FastWeights::rounded) is true, a
// kernel of ops/fast_weights.h may compute the products; like the other implementation, it computes in fp32.
// Differentiable once.
GateProducts gate_products(const at::Tensor& step, const at::Tensor& log_momentum, const at::Tensor& log_keep,
                           bool rounded);

}  // namespace lazy
