// Learned tokens that stand before every text: the persistent memory of Titans.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

struct ForwardOptions;
struct ModelConfig;
struct PackedSequences;
class ParameterTable;

// The parameter `persistent`, (tokens, hidden_size); none of no tokens.
at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config);

struct WithPersistent {
  at::Tensor x;                             // [persistent | x], of every document; x alone where a cache continues
  at::Tensor positions;                     // (tokens) int64 places in it, the persistent ones included
  const PackedSequences* packed = nullptr;  // packed documents with theirs, as long as the pass takes; null: not packed
  at::Tensor rows;                          // of packed documents: where x's tokens stand in it
  int64_t added = 0;                        // persistent tokens before x, of one not packed

  at::Tensor text(const at::Tensor& y) const;  // y (batch, tokens, ...) without the persistent tokens' rows
};

// x (batch, length, hidden_size), persistent (tokens, hidden_size).
WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options);

}  // namespace lazy
