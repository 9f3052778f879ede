#include "model/blocks/swiglu.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

}  // namespace lazy
