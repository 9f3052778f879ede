// Products of the gates of consecutive tokens. The neural memory of Titans uses these products as factors of its
// gradient steps, its momentum and its weights.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// The weights M and the momentum S of the memory at each of T tokens are linear combinations of M and S before the
// first token and of the gradients G at the T tokens: M_t = read_keep_t M + read_carry_t S - sum_{s <= t} read_steps_ts
// G_s. After the last token, M is keep M + carry S - sum_s steps_s G_s, and S is momentum_keep S - sum_s
// momentum_steps_s G_s.
struct GateProducts {
  at::Tensor read_steps;                  // (..., T, T), lower triangular
  at::Tensor read_keep, read_carry;       // (..., T, 1)
  at::Tensor steps, momentum_steps;       // (..., T, 1)
  at::Tensor keep, carry, momentum_keep;  // (..., 1, 1)
};

// step, log_momentum and log_keep (..., T) are the gates of the tokens, as defined in MemoryInputs (neural_memory.h).
// If `rounded` (FastWeights::rounded) is true, a kernel of ops/fast_weights.h may compute the products; both
// implementations compute in fp32. The result can be differentiated once.
GateProducts gate_products(const at::Tensor& step, const at::Tensor& log_momentum, const at::Tensor& log_keep,
                           bool rounded);

}  // namespace lazy
