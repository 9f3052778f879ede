// The chunkwise parallel form of linear recurrences: batched matrix products within chunks, and a sequential state
// between chunks. Memory is linear in the length: the inputs and some of the states are saved, and the backward pass
// recomputes all other tensors.
#pragma once
#include <functional>

#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

// Decay factors in the dtype of the state: exponentials of sums of log decays (at most 0). Factors between tokens of
// different documents are zero. Dimensions: N chunks, B batch, H heads, C tokens per chunk. N and B are 1 if the
// factors do not depend on them.
struct ChunkDecays {
  at::Tensor pairs;   // (N, B, H, C, C): decay from the column's token to the row's token; 0 above the diagonal
  at::Tensor reads;   // (N, B, H, C, 1): decay of the state before the chunk, at each token
  at::Tensor writes;  // (N, B, H, C, 1): decay of each token's write at the end of the chunk
  // (N, B, H, 1, 1): decay of the state across the chunk. N is the number of chunks in any case.
  at::Tensor keeps;
};

// Whole chunks of a sequence, in the dtype of the state. In addition to the dimensions of ChunkDecays: G groups of
// heads, K key_dim, V value_dim.
struct Chunks {
  at::Tensor q, k;   // (N, B, G, C, K); q is already multiplied by Inputs::scale
  at::Tensor v;      // (N, B, H, C, V)
  at::Tensor beta;   // (N, B, H, C, 1): write strength of each token; undefined: 1
  at::Tensor state;  // (B, H, K, V): state before the first chunk
  ChunkDecays decays;
};

// The outputs of whole chunks, (N, B, H, C, V), and the state after the last chunk, (B, H, K, V).
struct ChunkOutputs {
  at::Tensor out, state;
};
using ChunkForm = std::function<ChunkOutputs(const Chunks&)>;

Outputs by_chunks(const char* operation, const Inputs& in, int64_t chunk, const ChunkForm& form);

}  // namespace lazy::recurrence
