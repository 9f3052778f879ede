// Packed sequences as mixers take them that learn chunk by chunk, or put learned tokens before every text. Every layer
// of a pass needs the same, so it is laid out once; a GPU fetches it while the host goes on.
#pragma once
#include <map>

#include "model/forward_options.h"

namespace lazy {

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
at::Tensor batch_document_tokens(const at::Tensor& x, const DocumentBatch& batch);
// The batches' answers (documents, length, ...), one of each in their order -> (1, tokens, ...).
at::Tensor unbatch_documents(const std::vector<at::Tensor>& answers, const DocumentBatches& documents);

// [prefix | document] for every document.
struct PrefixedDocuments {
  PackedSequences sequences;  // of both; no ids
  at::Tensor from;            // (all tokens) int64: where each stands in [prefix | documents' tokens]
  at::Tensor rows;            // (documents' tokens) int64: where each stands in the sequences
};

struct PackedLayouts {
  std::map<int64_t, DocumentBatches> batches;     // by the tokens of a chunk
  std::map<int64_t, PrefixedDocuments> prefixed;  // by the tokens of the prefix
};

// document_batches(packed.cu_seqlens_q, ...), kept with `packed`.
const DocumentBatches& batches_of(const PackedSequences& packed, int64_t chunk, at::Device device);
// `count` tokens before each; kept likewise.
const PrefixedDocuments& with_prefix(const PackedSequences& packed, int64_t count, at::Device device);

}  // namespace lazy
