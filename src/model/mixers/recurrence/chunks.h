// The chunk-parallel form of a recurrence: within a chunk, products of matrices of all chunks at once; between chunks,
// the state. Memory is linear in the length; a backward pass keeps the inputs and a state here and there, and computes
// the rest again.
#pragma once
#include <functional>

#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

// How much reaches where, in the state's type: exponentials of sums of log decays, which are at most 0. Zero where
// documents differ. N and B are 1 where it is the same for all.
struct ChunkDecays {
  at::Tensor pairs;   // (N, B, H, C, C): of the token in the column, at the one in the row; zero above the diagonal
  at::Tensor reads;   // (N, B, H, C, 1): of the state before the chunk, at each token
  at::Tensor writes;  // (N, B, H, C, 1): of each token, at the chunk's end
  at::Tensor keeps;   // (N, B, H, 1, 1): of the state before the chunk, at its end; N is not 1 instead
};

// Whole chunks of a sequence, in the state's type.
struct Chunks {
  at::Tensor q, k;   // (N, B, G, C, K), q scaled
  at::Tensor v;      // (N, B, H, C, V)
  at::Tensor beta;   // (N, B, H, C, 1) or undefined
  at::Tensor state;  // (B, H, K, V) before the first
  ChunkDecays decays;
};

// Of whole chunks: what they read, (N, B, H, C, V), and the state after the last.
struct ChunkOutputs {
  at::Tensor out, state;
};
using ChunkForm = std::function<ChunkOutputs(const Chunks&)>;

Outputs by_chunks(const char* operation, const Inputs& in, int64_t chunk, const ChunkForm& form);

}  // namespace lazy::recurrence
