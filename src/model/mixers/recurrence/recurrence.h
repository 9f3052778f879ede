// Common inputs and outputs of the linear recurrences. The state of a recurrence is a matrix per head. Each token's key
// and value are written to it, a decay shrinks it, and queries read it. Each recurrence has two implementations: a loop
// over tokens, which is its definition, and a chunkwise form for training. Dimensions: B batch, L length, H heads, G
// groups of heads, K key_dim, V value_dim, N chunks, C tokens per chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace lazy::recurrence {

struct Inputs {
  at::Tensor q, k;  // (B, L, G, K); G must divide H, and H / G consecutive heads of v share a query and a key
  at::Tensor v;     // (B, L, H, V), in the dtype of q
  // Logarithms of the decay factors, at most 0: (B, L, H), or (H) if constant over time; fp32 (float64 for float64
  // inputs). Undefined: no decay.
  at::Tensor log_decay;
  at::Tensor beta;           // (B, L, H): write strength of each token; undefined: 1. Required by the delta rule
  at::Tensor skip;           // (H): skip * v is added to the output of the decaying recurrence; undefined: 0
  at::Tensor initial_state;  // (B, H, K, V) in the dtype of the state; undefined: zeros
  // (documents + 1) int32 or int64, on the host or on the device of v: offsets of packed documents. B must be 1, and
  // the state is reset at the start of each document. Undefined: sequences are not packed.
  at::Tensor cu_seqlens;
  double scale = 1;  // factor by which the queries are multiplied
};

struct Outputs {
  at::Tensor out;  // (B, L, H, V), in the dtype of v
  // (B, H, K, V) after the last token; fp32, or float64 for float64 inputs. Undefined for packed documents.
  at::Tensor state;
};

// Throws an Error if the shapes are inconsistent; `operation` is the prefix of the message.
void check(const char* operation, const Inputs& in);

// Returns a tensor (length) with the index of each token's document, counted from 1. It has the dtype of cu_seqlens and
// is on `device`.
at::Tensor documents_of(const at::Tensor& cu_seqlens, int64_t length, at::Device device);

// Returns the dtype of the state and of the arithmetic for values v: float64 for float64 values, otherwise fp32.
at::ScalarType state_type(const at::Tensor& v);

// The inputs of one token, in the dtype of the state. log_decay and beta (B, H) are undefined if the recurrence does
// not use them.
struct Token {
  at::Tensor q, k;  // (B, H, K)
  at::Tensor v;     // (B, H, V)
  at::Tensor log_decay, beta;
};

// Computes one token: returns its output (B, H, V) and replaces `state` (B, H, K, V), which is not modified in place.
using Step = std::function<at::Tensor(const Token& token, at::Tensor& state)>;

Outputs loop(const char* operation, const Inputs& in, const Step& step);

bool on_tensor_cores(const Inputs& in, bool delta);
Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta);
// Computes a single token with the fused kernel. Returns nullopt if the kernel does not support the inputs.
std::optional<Outputs> by_step_kernel(const char* operation, const Inputs& in, bool delta);

}  // namespace lazy::recurrence
