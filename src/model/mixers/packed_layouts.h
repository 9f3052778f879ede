// Index tensors of packed sequences, for mixers that process documents in chunks or prepend learned tokens to each
// document. They are built once per forward pass and shared by all layers. The copy to a GPU is asynchronous.
#pragma once
#include <map>

#include "model/forward_options.h"

namespace lazy {

// Documents of a packed sequence, padded to a common length. Each document is padded to at most twice its own length,
// rounded up to whole chunks.
struct DocumentBatch {
  at::Tensor tokens;  // (documents, length) int64: indices into the packed sequence
  at::Tensor real;    // (documents, length) bool: false at padding
};
struct DocumentBatches {
  std::vector<DocumentBatch> batches;
  at::Tensor where;  // (tokens) int64: for each packed token, its index in the concatenation of all flattened batches
};

// Groups the documents into batches. The padded lengths are multiples of `chunk`. cu_seqlens has the shape (documents +
// 1). Empty documents are not in any batch.
DocumentBatches document_batches(const at::Tensor& cu_seqlens, int64_t chunk, at::Device device);

// Converts the packed tensor x (1, tokens, ...) to the padded documents of `batch`, (documents, length, ...).
at::Tensor batch_document_tokens(const at::Tensor& x, const DocumentBatch& batch);
// Converts the outputs of all batches, each (documents, length, ...), to the packed layout (1, tokens, ...).
at::Tensor unbatch_documents(const std::vector<at::Tensor>& answers, const DocumentBatches& documents);

// A packed sequence in which a prefix of learned tokens precedes every document: [prefix | document], [prefix |
// document],
// ...
struct PrefixedDocuments {
  PackedSequences sequences;  // the prefixes and documents; ids are undefined
  // (tokens including prefixes) int64: for each token of this layout, its index in [prefix | all documents].
  at::Tensor from;
  at::Tensor rows;  // (tokens without prefixes) int64: index of each document token in this layout
};

struct PackedLayouts {
  std::map<int64_t, DocumentBatches> batches;     // key: chunk size
  std::map<int64_t, PrefixedDocuments> prefixed;  // key: prefix length
};

// Returns document_batches(packed.cu_seqlens_q, ...). The result is cached in `packed`.
const DocumentBatches& batches_of(const PackedSequences& packed, int64_t chunk, at::Device device);
// Returns the layout with `count` prefix tokens per document. The result is cached in `packed`.
const PrefixedDocuments& with_prefix(const PackedSequences& packed, int64_t count, at::Device device);

}  // namespace lazy
