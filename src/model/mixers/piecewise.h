// Runs a state through a sequence piece by piece, for mixers whose state at one chunk decides the next one's. Memory is
// linear in the length: a backward pass keeps what went in and a state every few hundred tokens, and computes the rest
// again.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/mixers/chunk_pieces.h"

namespace lazy {

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

}  // namespace lazy
