#include "model/blocks/swiglu.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

}  // namespace lazy
