// The attention of single query tokens: the statistics of every head at each token, and the weights of the last token.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/language_model.h"

namespace lazy::sinks {

struct TokenAttention {
  // (3, queries, layers, heads) fp32: weight on the first key; 1 - sum of the weights; number of keys with a weight
  // above zero. NaN in layers without attention.
  at::Tensor statistics;
  // For each layer the weights of the last token, (heads, length) fp32. Undefined in layers without attention.
  std::vector<at::Tensor> weights;
};

// Runs one forward pass over `ids` (length), int64. The statistics cover the queries from index `first` to the end.
// With statistics_only, `weights` is not computed. Memory does not grow quadratically with the length, except for
// Transformer-XL.
TokenAttention token_attention(LanguageModel& model, const at::Tensor& ids, int64_t first,
                               bool statistics_only = false);

}  // namespace lazy::sinks
