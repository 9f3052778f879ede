// Whether a model's keys and values can be stored in pages (model/paged_keys.h), and the size of a page.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "model/config.h"
#include "model/torch_forward.h"

namespace lazy {

// Bytes of a page in all layers.
int64_t page_bytes(const ModelConfig& config, int64_t page_size, at::ScalarType dtype);
// Why the model's sequences, of at most `max_length` tokens each, cannot be computed side by side over pages; empty:
// they can. Others have a KVCache each.
std::string why_not_paged(const ModelConfig& config, int64_t max_length = std::numeric_limits<int64_t>::max());

}  // namespace lazy
