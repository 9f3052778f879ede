// Sequential scan over the chunks of a sequence, for mixers whose state at one chunk is the input of the next.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lazy {

// A part of one chunk, or several consecutive whole chunks.
struct ChunkSpan {
  int64_t begin, length;
  int64_t offset;   // of its first token within the chunk
  bool ends_chunk;  // its last token is the last of a chunk
  bool starts_document;
  int64_t chunks = 1;       // number of whole chunks if more than one
  bool needs_state = true;  // false: the state after it is not used
};

// Splits a sequence at the ends of chunks and documents. `seen`: tokens of an unfinished chunk before the first token.
// With cu_seqlens (documents + 1) every document starts a chunk, and `seen` is 0. Empty documents have no span.
std::vector<ChunkSpan> split_into_chunks(int64_t length, int64_t chunk, int64_t seen, const at::Tensor& cu_seqlens);

// Merges consecutive whole chunks of a document into spans of at most `tokens` tokens (or one chunk).
std::vector<ChunkSpan> merge_whole_chunks(const std::vector<ChunkSpan>& pieces, int64_t tokens);

using TensorList = std::vector<at::Tensor>;

constexpr int64_t kTokensPerCheckpoint = 256;  // tokens between two saved states, unless a mixer says otherwise

// Computes the outputs (batch, heads, T, dim) of one span from its tokens, (batch, heads, T, ...) each, and tensors
// shared by all spans. Replaces the state by the one after the span if needs_state. It must not capture references,
// because the autograd graph owns it.
using ChunkFunction =
    std::function<TensorList(const ChunkSpan&, const TensorList& tokens, const TensorList& shared, TensorList& state)>;

// Runs the spans in order. tokens: (batch, length, heads, ...) each. Returns the outputs (batch, length, heads, dim)
// and the last state, which is empty unless last_state. Memory is linear in the length: the inputs and one state per
// tokens_per_checkpoint tokens are saved, and the backward pass recomputes the rest, unless there is memory for it
// (keep_or_checkpoint).
std::pair<TensorList, TensorList> scan_chunks(std::vector<ChunkSpan> pieces, const TensorList& tokens,
                                              const TensorList& shared, const TensorList& state, bool last_state,
                                              const ChunkFunction& form,
                                              int64_t tokens_per_checkpoint = kTokensPerCheckpoint);

// The chunkwise parallel form of weights that take one gradient step per token (the dual form of TTT, arXiv
// 2407.04620). Within a chunk of T tokens W_t = keep_t W + carry_t S - sum_{s <= t} steps_ts u_s^T g_s. W and S (...,
// in, out) are the weights and the momentum at the start of the chunk; u_s^T g_s is the gradient at token s.
struct ChunkwiseUpdate {
  at::Tensor keep;   // (..., T, 1); undefined: 1
  at::Tensor carry;  // (..., T, 1); undefined: no S
  at::Tensor steps;  // (..., T, T), lower triangular
};

// Computes x_t W_t for every t without materializing W_t: x (..., T, in), u (..., T, in), g (..., T, out) -> (..., T,
// out). `bias` treats the bias as the weights' last row, with a constant input of 1: b of W and b_S of S, (..., 1,
// out).
struct BiasTerms {
  at::Tensor b, b_S;
};
at::Tensor chunkwise_read(const ChunkwiseUpdate& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                          const at::Tensor& u, const at::Tensor& g, const BiasTerms& bias = {});

}  // namespace lazy
