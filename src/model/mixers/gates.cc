#include "model/mixers/gates.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {

at::Tensor step_size(const at::Tensor& x, const at::Tensor& dt_bias) {
  return at::softplus(x.to(at::kFloat) + dt_bias);
}

at::Tensor log_decay(const at::Tensor& step, const at::Tensor& A_log) { return -(A_log.exp() * step); }

void init_A_log(at::Tensor& tensor, double low, double high, at::Generator& generator) {
  tensor.uniform_(low, high, generator).clamp_min_(1e-6).log_();  // the lower limit avoids log(0)
}

void init_dt_bias(at::Tensor& tensor, at::Generator& generator) {
  tensor.uniform_(std::log(1e-3), std::log(0.1), generator).exp_();
  tensor.add_(tensor.neg().expm1().neg().log());  // apply the inverse of softplus
}

at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  const at::Tensor y = ops::rms_norm(o, weight, eps).flatten(2, 3);
  return gate.defined() ? ops::swiglu(gate, y) : y;
}

}  // namespace lazy
