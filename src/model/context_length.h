// How many tokens of context a model was made for.
#pragma once
#include <algorithm>
#include <cmath>

#include "model/config.h"

namespace lazy {

// max_position_embeddings, extended by the scaling of its rotary positions. transformers writes the length before
// scaling for the types "linear" and "dynamic", and the extended length for the others, which state the original length
// separately.
inline int64_t context_length(const ModelConfig& config) {
  const ops::RopeScaling& scaling = config.positions.rope_scaling;
  if (config.positions.kind != PositionKind::rope || scaling.type == "none") return config.max_length;
  const bool before_scaling = scaling.type == "linear" || scaling.type == "dynamic" || scaling.original_length == 0;
  const int64_t original = before_scaling ? config.max_length : scaling.original_length;
  const auto scaled = static_cast<int64_t>(std::floor(static_cast<double>(original) * scaling.factor));
  return std::max(config.max_length, scaled);
}

}  // namespace lazy
