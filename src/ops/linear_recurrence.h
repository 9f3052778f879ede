// lazy::linear_recurrence: linear recurrences over time, computed in chunks of 64 tokens on tensor cores. Supports only
// NVIDIA GPUs and bf16; model/mixers/recurrence has the definition and the implementation for other devices and types.
//   S_t = a_t S_{t-1} + k_t u_t^T,  o_t = scale S_t^T q_t,  a_t = exp(log_decay_t),
//   u_t = beta_t v_t, or with the delta rule beta_t (v_t - a_t S_{t-1}^T k_t).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "ops/optional_tensor.h"

namespace lazy::ops {

struct LinearRecurrence {
  at::Tensor q, k;           // (batch, length, groups, key_dim) bf16; `heads` is a multiple of `groups`
  at::Tensor v;              // (batch, length, heads, value_dim) bf16
  at::Tensor log_decay;      // (batch, length, heads) or (heads); undefined: no decay
  at::Tensor beta;           // (batch, length, heads); undefined: 1. Required by the delta rule
  at::Tensor skip;           // (heads): skip * v_t is added to o_t; undefined with the delta rule
  at::Tensor initial_state;  // (batch, heads, key_dim, value_dim), or undefined: zeros
  // (length) int32: index of each token's document; the batch must be 1. The state is reset at the start of each
  // document. Undefined: sequences are not packed.
  at::Tensor documents;
  double scale = 1;
  bool delta = false;
};

// Whether the kernels support these tensors on their device.
bool serves_linear_recurrence(const at::Tensor& q, const at::Tensor& v, bool delta);

// Returns the outputs o, with the shape of v, and the final state in fp32 (undefined with documents). bf16 products
// accumulate in fp32; the state is fp32. Differentiable in all inputs except `documents`. The backward pass recomputes
// the states.
std::tuple<at::Tensor, at::Tensor> linear_recurrence(const LinearRecurrence& in);

// The CUDA library registers this function when it is loaded. The function returns whether the current GPU has enough
// shared memory for keys with key_dim elements.
using RecurrenceFits = bool (*)(int64_t key_dim, bool delta);
void set_recurrence_fits(c10::DeviceType device, RecurrenceFits fits);

// Only the CPU and CUDA implementations use the following declarations. check_linear_recurrence() throws
// "lazy::linear_recurrence: expected ..., received ..." for invalid arguments, without reading tensor data.
#define LAZY_RECURRENCE_PARAMETERS                                                                 \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const OptionalTensor &log_decay,  \
      const OptionalTensor &beta, const OptionalTensor &skip, const OptionalTensor &initial_state, \
      const OptionalTensor &documents, double scale, bool delta

using RecurrenceOutputs = std::tuple<at::Tensor, at::Tensor>;
// Gradients of q, k, v, log_decay, beta, skip and initial_state; undefined for absent inputs.
using RecurrenceGradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline int64_t padded_key_dim(int64_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

void check_linear_recurrence(LAZY_RECURRENCE_PARAMETERS);

}  // namespace lazy::ops
