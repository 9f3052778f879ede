// What the linear recurrences over time have in common: queries read a matrix of state, keys and values write it, a
// decay fades it. Each recurrence has a loop (its definition, one token at a time) and a form by chunks for training.
// Letters: B batch, L length, H heads, G groups of heads, K key_dim, V value_dim, N chunks, C tokens of a chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace lazy::recurrence {

struct Inputs {
  at::Tensor q, k;  // (B, L, G, K); G divides H: neighboring heads share a query and a key
  at::Tensor v;     // (B, L, H, V), of q's type
  // fp32 (float64 with float64 inputs), at most 0: (B, L, H), or (H) when it never changes; undefined: no decay.
  at::Tensor log_decay;
  at::Tensor beta;  // (B, L, H): how much of each token is written; undefined: all, which the delta rule does not allow
  at::Tensor skip;  // (H), of the decaying recurrence: what a token reads has skip v besides; undefined: nothing
  at::Tensor initial_state;  // (B, H, K, V) in the state's type; undefined: zeros
  // (documents + 1) int32 or int64, on the host or where v is: where documents begin; B is 1 and no state crosses.
  // Undefined: whole sequences.
  at::Tensor cu_seqlens;
  double scale = 1;  // of the queries
};

struct Outputs {
  at::Tensor out;  // (B, L, H, V), of v's type
  at::Tensor
      state;  // (B, H, K, V) after the last token; fp32, or float64 for float64 inputs. Undefined for packed documents
};

// Throws when shapes do not fit each other; `operation` begins the message.
void check(const char* operation, const Inputs& in);

// (length) of cu_seqlens' type: the document that each token is of, counted from 1, on `device`.
at::Tensor documents_of(const at::Tensor& cu_seqlens, int64_t length, at::Device device);

// The type that a recurrence is computed in.
at::ScalarType state_type(const at::Tensor& v);

// One token of every head, in the state's type. Undefined: decay (B, H), when there is none, and beta (B, H).
struct Token {
  at::Tensor q, k;  // (B, H, K)
  at::Tensor v;     // (B, H, V)
  at::Tensor log_decay, beta;
};

// Returns what the token reads, (B, H, V); `state` (B, H, K, V) is replaced, not changed in place.
using Step = std::function<at::Tensor(const Token& token, at::Tensor& state)>;

Outputs loop(const char* operation, const Inputs& in, const Step& step);

bool on_tensor_cores(const Inputs& in, bool delta);
Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta);

}  // namespace lazy::recurrence
