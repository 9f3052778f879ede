// Tokens as fast weights take them, and packed documents as batches.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lazy::fast_weights {

// (batch, heads, chunks * T, ...) -> (chunks, batch * heads, T, ...), contiguous, and back.
at::Tensor to_chunks(const at::Tensor& x, int64_t chunks);
at::Tensor from_chunks(const at::Tensor& x, int64_t batch);

// What the heads have, (heads, 1, dim), for those of every sequence: (batch * heads, 1, dim).
at::Tensor for_all(const at::Tensor& of_heads, int64_t batch);

// Documents of a packed sequence that share a batch, none more than twice as long as it needs.
struct DocumentBatch {
  at::Tensor tokens;  // (documents, length) int64: places in the packed sequence
  at::Tensor real;    // (documents, length) bool: not padding
};
struct DocumentBatches {
  std::vector<DocumentBatch> batches;
  at::Tensor where;  // (tokens) int64: the place of each in the batches' tokens one after the other
};
// Lengths are multiples of `chunk`. cu_seqlens (documents + 1): empty documents are in no batch.
DocumentBatches document_batches(const at::Tensor& cu_seqlens, int64_t chunk, at::Device device);

// x (1, tokens, ...) -> (documents, length, ...).
at::Tensor take_documents(const at::Tensor& x, const DocumentBatch& batch);

}  // namespace lazy::fast_weights
