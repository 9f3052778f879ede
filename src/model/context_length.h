// The context length that a model supports.
#pragma once
#include <algorithm>
#include <cmath>

#include "model/config.h"

namespace lazy {

// Returns max_position_embeddings, extended by RoPE scaling if present. For the scaling types "linear" and "dynamic",
// transformers stores the length before scaling in max_position_embeddings. For the other types it stores the extended
// length and states the original length separately.
inline int64_t context_length(const ModelConfig& config) {
  const ops::RopeScaling& scaling = config.positions.rope_scaling;
  if (config.positions.kind != PositionKind::rope || scaling.type == "none") return config.max_length;
  const bool before_scaling = scaling.type == "linear" || scaling.type == "dynamic" || scaling.original_length == 0;
  const int64_t original = before_scaling ? config.max_length : scaling.original_length;
  const auto scaled = static_cast<int64_t>(std::floor(static_cast<double>(original) * scaling.factor));
  return std::max(config.max_length, scaled);
}

}  // namespace lazy
