// Every tensor of a decoder by name and shape, without making the decoder.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

struct ParameterShape {
  std::string name;  // the checkpoint's
  std::vector<int64_t> shape;
  bool trained = true;  // false: a fixed offset
  // A saved bf16 model keeps it in fp32 all the same: offsets and distance biases decide which pairs are alive, and a
  // recurrence's decay is exponentiated over its whole length.
  bool wide = false;
  std::optional<bool> decayed;  // by weight decay (decision A2); not given: as matrices are, and vectors are not
  bool decays() const { return decayed.value_or(shape.size() > 1); }
  int64_t count() const;  // elements
};

// Those of an adaptive vocabulary.
std::vector<ParameterShape> adaptive_shapes(const ModelConfig& config);

// The checkpoint's tensors in its order. A tied head is not listed.
std::vector<ParameterShape> parameter_shapes(const ModelConfig& config);

}  // namespace lazy
