// Runs a state through a sequence chunk by chunk, for mixers whose state at one chunk is needed for the next.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lazy {

struct ChunkPiece {
  int64_t begin, length;
  int64_t place;    // of its first token within the chunk, from 0
  bool ends_chunk;  // its last token is the chunk's last
  bool starts_document;
  int64_t chunks = 1;        // so many in a row, all of them whole if more than one
  bool leaves_state = true;  // false: nobody asks for the state after it
};

// `seen`: tokens of an unfinished chunk that went before. With cu_seqlens (documents + 1) every document starts a
// chunk, and `seen` is 0. Empty documents have no piece.
std::vector<ChunkPiece> chunk_pieces(int64_t length, int64_t chunk, int64_t seen, const at::Tensor& cu_seqlens);

// Whole chunks of a document that follow each other as one piece, of `tokens` tokens at most (or one chunk).
std::vector<ChunkPiece> joined(const std::vector<ChunkPiece>& pieces, int64_t tokens);

using TensorList = std::vector<at::Tensor>;

constexpr int64_t kTokensAGroup = 256;  // between two states that are kept

// What one piece answers, (batch, heads, T, dim), from its tokens, (batch, heads, T, ...) each, and what all pieces
// share; replaces the state by the one after it, if the piece leaves one. Holds no references: it lives as long as the
// graph.
using PieceForm =
    std::function<at::Tensor(const ChunkPiece&, const TensorList& tokens, const TensorList& shared, TensorList& state)>;

// tokens: (batch, length, heads, ...) each; the answers as (batch, length, heads, dim), and the last state, empty
// unless last_state asks for it.
std::pair<at::Tensor, TensorList> piecewise(std::vector<ChunkPiece> pieces, const TensorList& tokens,
                                            const TensorList& shared, const TensorList& state, bool last_state,
                                            const PieceForm& form);

// Within a chunk of T tokens the weights are W_t = keep_t W + carry_t S - sum_{s <= t} steps_ts u_s^T g_s, where W and
// S
// (..., in, out) are known at its start and u_s^T g_s is the gradient at token s.
struct DualForm {
  at::Tensor keep;   // (..., T, 1); undefined: 1
  at::Tensor carry;  // (..., T, 1); undefined: no S
  at::Tensor steps;  // (..., T, T), lower triangular
};

// x_t W_t for every t: x (..., T, in), u (..., T, in), g (..., T, out) -> (..., T, out). `bias` adds that of weights
// whose inputs end in a 1: `b` and `b_S` (..., 1, out) are then their last rows.
struct BiasRows {
  at::Tensor b, b_S;
};
at::Tensor read(const DualForm& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                const at::Tensor& u, const at::Tensor& g, const BiasRows& bias = {});

}  // namespace lazy
