// How a sequence is cut for mixers that learn chunk by chunk: pieces that end where a chunk or a document ends.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
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

}  // namespace lazy
