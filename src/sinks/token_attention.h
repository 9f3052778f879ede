// The attention of single tokens: every head's statistics at each token, and the last token's weights.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/language_model.h"

namespace lazy::sinks {

struct TokenAttention {
  // (3, queries, layers, heads) fp32: weight on the first key, 1 - sum of the weights, keys with a weight above zero;
  // NaN in layers without attention.
  at::Tensor statistics;
  // Each layer's weights of the last token, (heads, length) in fp32; undefined in layers without attention.
  std::vector<at::Tensor> weights;
};

// One pass over ids (length), int64; its memory does not grow with the square of the length unless the scores are
// Transformer-XL's. Statistics are those of the queries from `first` on. statistics_only: no weights.
TokenAttention token_attention(LanguageModel& model, const at::Tensor& ids, int64_t first,
                               bool statistics_only = false);

}  // namespace lazy::sinks
