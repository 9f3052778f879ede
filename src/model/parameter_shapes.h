// Every tensor of a decoder by name and shape, without making the decoder.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

struct ParameterShape {
  std::string name;  // the checkpoint's
  std::vector<int64_t> shape;
  bool trained = true;    // false: a fixed offset
  int64_t count() const;  // elements
};

// The checkpoint's tensors in its order. A tied head is not listed.
std::vector<ParameterShape> parameter_shapes(const ModelConfig& config);

}  // namespace lazy
