#include "model/mixers/dual_form.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor read(const DualForm& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                const at::Tensor& u, const at::Tensor& g, const BiasRows& bias) {
  const auto through = [&](const at::Tensor& weights, const at::Tensor& row) {
    const at::Tensor y = at::matmul(x, weights);
    return row.defined() ? y + row : y;
  };
  at::Tensor y = through(W, bias.b);
  if (form.keep.defined()) y = y * form.keep;
  if (form.carry.defined()) y = y + form.carry * through(S, bias.b_S);
  at::Tensor overlap = at::matmul(x, u.transpose(-1, -2));
  if (bias.b.defined()) overlap = overlap + 1;  // the inputs' last 1 times the gradients'
  return y - at::matmul(form.steps * overlap, g);
}

}  // namespace lazy
