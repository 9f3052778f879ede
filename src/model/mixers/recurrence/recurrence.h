// Common inputs and outputs of the linear recurrences over time: keys and values write to a matrix-valued state, a
// decay shrinks it, queries read it. Each recurrence has a loop over tokens, which is its definition, and a chunkwise
// form for training. Dimensions: B batch, L length, H heads, G groups of heads, K key_dim, V value_dim, N chunks, C
// tokens per chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace lazy::recurrence {

struct Inputs {
  at::Tensor q, k;  // (B, L, G, K); G divides H: neighboring heads share a query and a key
  at::Tensor v;     // (B, L, H, V), of q's dtype
  // fp32 (float64 for float64 inputs), at most 0: (B, L, H), or (H) if constant over time; undefined: no decay.
  at::Tensor log_decay;
  at::Tensor beta;           // (B, L, H): write strength of each token; undefined: 1. Required by the delta rule
  at::Tensor skip;           // (H): adds skip v to the output of the decaying recurrence; undefined: 0
  at::Tensor initial_state;  // (B, H, K, V) in the state's dtype; undefined: zeros
  // (documents + 1) int32 or int64, on the host or on v's device: offsets of packed documents. B is 1 and the state is
  // reset at each document. Undefined: whole sequences.
  at::Tensor cu_seqlens;
  double scale = 1;  // scale of the queries
};

struct Outputs {
  at::Tensor out;  // (B, L, H, V), of v's dtype
  at::Tensor
      state;  // (B, H, K, V) after the last token; fp32, or float64 for float64 inputs. Undefined for packed documents
};

// Throws if the shapes are inconsistent; `operation` is the prefix of the message.
void check(const char* operation, const Inputs& in);

// (length) of cu_seqlens' dtype, on `device`: the document of each token, counted from 1.
at::Tensor documents_of(const at::Tensor& cu_seqlens, int64_t length, at::Device device);

// The dtype of the recurrence's state and arithmetic.
at::ScalarType state_type(const at::Tensor& v);

// One token of every head, in the state's dtype. decay (B, H) is undefined if there is none; so is beta (B, H).
struct Token {
  at::Tensor q, k;  // (B, H, K)
  at::Tensor v;     // (B, H, V)
  at::Tensor log_decay, beta;
};

// Returns the token's output, (B, H, V). Replaces `state` (B, H, K, V); does not modify it in place.
using Step = std::function<at::Tensor(const Token& token, at::Tensor& state)>;

Outputs loop(const char* operation, const Inputs& in, const Step& step);

bool on_tensor_cores(const Inputs& in, bool delta);
Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta);
// A token by the kernel for it: nothing where that does not serve.
std::optional<Outputs> by_step_kernel(const char* operation, const Inputs& in, bool delta);

}  // namespace lazy::recurrence
