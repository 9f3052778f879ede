// The chunkwise parallel form of linear recurrences: batched matrix products within chunks, a sequential state between
// chunks. Memory is linear in the length: the backward pass saves the inputs and some of the states and recomputes the
// rest.
#pragma once
#include <functional>

#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

// Decay factors in the state's dtype: exponentials of sums of log decays, which are at most 0. Zero between different
// documents. N and B are 1 if the factors do not depend on them.
struct ChunkDecays {
  at::Tensor pairs;   // (N, B, H, C, C): of the column's token at the row's token; zero above the diagonal
  at::Tensor reads;   // (N, B, H, C, 1): of the state before the chunk, at each token
  at::Tensor writes;  // (N, B, H, C, 1): of each token, at the end of the chunk
  at::Tensor keeps;   // (N, B, H, 1, 1): of the state before the chunk, at its end; N is never broadcast
};

// Whole chunks of a sequence, in the state's dtype.
struct Chunks {
  at::Tensor q, k;   // (N, B, G, C, K), q scaled
  at::Tensor v;      // (N, B, H, C, V)
  at::Tensor beta;   // (N, B, H, C, 1) or undefined
  at::Tensor state;  // (B, H, K, V), before the first chunk
  ChunkDecays decays;
};

// The outputs of whole chunks, (N, B, H, C, V), and the state after the last one.
struct ChunkOutputs {
  at::Tensor out, state;
};
using ChunkForm = std::function<ChunkOutputs(const Chunks&)>;

Outputs by_chunks(const char* operation, const Inputs& in, int64_t chunk, const ChunkForm& form);

}  // namespace lazy::recurrence
