// The definition of a recurrence: one token after the other, each document from an empty state.
#pragma once
#include <functional>

#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

// One token of every head, in the state's type. Undefined: decay (B, H), when there is none, and beta (B, H).
struct Token {
  at::Tensor q, k;  // (B, H, K)
  at::Tensor v;     // (B, H, V)
  at::Tensor log_decay, beta;
};

// Returns what the token reads, (B, H, V); `state` (B, H, K, V) is replaced, not changed in place.
using Step = std::function<at::Tensor(const Token& token, at::Tensor& state)>;

Outputs loop(const char* operation, const Inputs& in, const Step& step);

}  // namespace lazy::recurrence
