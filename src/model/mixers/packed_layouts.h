// Index tensors of packed sequences for mixers that process documents in chunks or prepend learned tokens to each
// document. They are built once per forward pass and shared by all layers; the copy to a GPU is asynchronous.
#pragma once
#include <map>

#include "model/forward_options.h"

namespace lazy {

// Documents of a packed sequence padded to a common length, which is at most twice the length that each one needs.
struct DocumentBatch {
  at::Tensor tokens;  // (documents, length) int64: indices into the packed sequence
  at::Tensor real;    // (documents, length) bool: false at padding
};
struct DocumentBatches {
  std::vector<DocumentBatch> batches;
  at::Tensor where;  // (tokens) int64: index of each packed token in the concatenated tokens of all batches
};

// Lengths are padded to multiples of `chunk`. cu_seqlens (documents + 1); empty documents are in no batch.
DocumentBatches document_batches(const at::Tensor& cu_seqlens, int64_t chunk, at::Device device);

// x (1, tokens, ...) -> (documents, length, ...).
at::Tensor batch_document_tokens(const at::Tensor& x, const DocumentBatch& batch);
// Concatenates the outputs (documents, length, ...), one per batch in order, back to (1, tokens, ...).
at::Tensor unbatch_documents(const std::vector<at::Tensor>& answers, const DocumentBatches& documents);

// The layout [prefix | document] of every document.
struct PrefixedDocuments {
  PackedSequences sequences;  // prefix and document; ids are undefined
  at::Tensor from;            // (all tokens) int64: index of each in [prefix | documents' tokens]
  at::Tensor rows;            // (documents' tokens) int64: index of each in the prefixed sequences
};

struct PackedLayouts {
  std::map<int64_t, DocumentBatches> batches;     // by chunk size
  std::map<int64_t, PrefixedDocuments> prefixed;  // by prefix length
};

// document_batches(packed.cu_seqlens_q, ...), cached in `packed`.
const DocumentBatches& batches_of(const PackedSequences& packed, int64_t chunk, at::Device device);
// The layout with `count` prefix tokens per document, cached in `packed`.
const PrefixedDocuments& with_prefix(const PackedSequences& packed, int64_t count, at::Device device);

}  // namespace lazy
