// lazy::linear_recurrence: the linear recurrences over time by chunks of 64 tokens, on tensor cores. NVIDIA GPUs and bf16 only;
// model/mixers/recurrence has the definition, and the form for every other device and type.
//   S_t = a_t S_{t-1} + k_t u_t^T,  o_t = scale S_t^T q_t,  a_t = exp(log_decay_t),
//   u_t = beta_t v_t, or with the delta rule beta_t (v_t - a_t S_{t-1}^T k_t).
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace lazy::ops {

struct LinearRecurrence {
  at::Tensor q, k;             // (batch, length, groups, key_dim) bf16; groups divide heads
  at::Tensor v;                // (batch, length, heads, value_dim) bf16
  at::Tensor log_decay;        // (batch, length, heads) or (heads), or undefined
  at::Tensor beta;             // (batch, length, heads), or undefined, which the delta rule does not allow
  at::Tensor skip;             // (heads): o_t has skip v_t besides, not with the delta rule; or undefined
  at::Tensor initial_state;    // (batch, heads, key_dim, value_dim), or undefined: zeros
  at::Tensor documents;        // (length) int32, of each token in a batch of 1: no state crosses; or undefined
  double scale = 1;
  bool delta = false;
};

// Whether the kernels serve tensors like these on their GPU.
bool serves_linear_recurrence(const at::Tensor& q, const at::Tensor& v, bool delta);

// What the tokens read, like v, and the state after the last in fp32, undefined with documents. Products of bf16 with sums in
// fp32; the state is kept in fp32. Differentiable in all but documents; the backward pass computes the states again.
std::tuple<at::Tensor, at::Tensor> linear_recurrence(const LinearRecurrence& in);

// Said by the CUDA operators when they are loaded: whether the current GPU has the memory for keys of this width.
using RecurrenceFits = bool (*)(int64_t key_dim, bool delta);
void set_recurrence_fits(RecurrenceFits fits);

}  // namespace lazy::ops
