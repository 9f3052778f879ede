// Decides whether a model's keys and values can be stored in pages (model/paged_keys.h), and computes the size of a
// page.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "model/config.h"
#include "model/torch_forward.h"

namespace lazy {

// Returns the number of bytes of one page, summed over all layers.
int64_t page_bytes(const ModelConfig& config, int64_t page_size, at::ScalarType dtype);
// Returns the reason why the model does not support the paged KV cache for sequences of up to `max_length` tokens, or
// an empty string if it does. For unsupported models, each sequence has a separate KVCache.
std::string paged_unsupported_reason(const ModelConfig& config,
                                     int64_t max_length = std::numeric_limits<int64_t>::max());

}  // namespace lazy
