#include "model/mixers/output_norm.h"

#include <ATen/ATen.h>

#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {

at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  const at::Tensor y = ops::rms_norm(o, weight, eps).flatten(2, 3);
  return gate.defined() ? ops::swiglu(gate, y) : y;
}

}  // namespace lazy
