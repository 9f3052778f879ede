// Sequential scan over the chunks of a sequence, for mixers that compute each chunk from the state after the previous
// chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lazy {

// A part of one chunk, or several consecutive whole chunks. Token indices are relative to the start of the sequence.
struct ChunkSpan {
  int64_t begin, length;
  int64_t offset;   // position of the span's first token within its chunk
  bool ends_chunk;  // true: the span's last token is the last token of a chunk
  bool starts_document;
  int64_t chunks = 1;       // number of chunks in the span; 1 if the span is a part of a chunk
  bool needs_state = true;  // false: the state after the span is not used
};

// Splits a sequence at the ends of chunks and documents. `seen` is the number of tokens of an unfinished chunk that
// were processed in earlier calls. With cu_seqlens (documents + 1), every document starts a new chunk, and `seen` must
// be 0. Empty documents have no span.
std::vector<ChunkSpan> split_into_chunks(int64_t length, int64_t chunk, int64_t seen, const at::Tensor& cu_seqlens);

// Merges consecutive whole chunks of a document into spans of at most `tokens` tokens. A span has at least one chunk.
std::vector<ChunkSpan> merge_whole_chunks(const std::vector<ChunkSpan>& pieces, int64_t tokens);

using TensorList = std::vector<at::Tensor>;

constexpr int64_t kTokensPerCheckpoint = 256;  // default number of tokens between two saved states

// Computes the outputs (batch, heads, T, dim) of one span. `tokens` are the tensors of the span's tokens, each (batch,
// heads, T, ...); `shared` are the tensors that all spans use. If needs_state is true, the function replaces `state` by
// the state after the span. The autograd graph owns the function, so it must not capture references.
using ChunkFunction =
    std::function<TensorList(const ChunkSpan&, const TensorList& tokens, const TensorList& shared, TensorList& state)>;

// Runs `form` on the spans in order. `tokens` has the shapes (batch, length, heads, ...). Returns the outputs (batch,
// length, heads, dim) and the state after the last span; this state is empty unless last_state is true. Memory is
// linear in the length: the inputs and one state per tokens_per_checkpoint tokens are saved. The backward pass
// recomputes all other activations, unless there was enough memory to keep them (keep_or_checkpoint).
std::pair<TensorList, TensorList> scan_chunks(std::vector<ChunkSpan> pieces, const TensorList& tokens,
                                              const TensorList& shared, const TensorList& state, bool last_state,
                                              const ChunkFunction& form,
                                              int64_t tokens_per_checkpoint = kTokensPerCheckpoint);

// The chunkwise parallel form of weights that take one gradient step per token (the dual form of TTT, arXiv
// 2407.04620). Within a chunk of T tokens, the weights at token t are W_t = keep_t W + carry_t S - sum_{s <= t}
// steps_ts u_s^T g_s. Here, W and S (..., in, out) are the weights and the momentum at the start of the chunk. u_s^T
// g_s is the gradient at token s, where u_s is the input and g_s the gradient of the loss with respect to the output.
struct ChunkwiseUpdate {
  at::Tensor keep;   // factors keep_t of W, (..., T, 1); undefined: all 1
  at::Tensor carry;  // factors carry_t of S, (..., T, 1); undefined: no momentum S
  at::Tensor steps;  // factors steps_ts of the gradients, (..., T, T), lower triangular
};

// The biases of chunkwise_read(), which computes x_t W_t (..., T, out) for every token t without materializing W_t. The
// inputs are x (..., T, in), u (..., T, in) and g (..., T, out). With `bias`, the weights have one more row, the bias,
// whose input is always 1: b is the bias of W and b_S the bias of S, each (..., 1, out).
struct BiasTerms {
  at::Tensor b, b_S;
};
at::Tensor chunkwise_read(const ChunkwiseUpdate& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                          const at::Tensor& u, const at::Tensor& g, const BiasTerms& bias = {});

}  // namespace lazy
