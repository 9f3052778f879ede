#include "model/mixers/fast_weights/bounded_error.h"

#include <ATen/ATen.h>

namespace lazy::fast_weights {
namespace {

at::Tensor square_of(const at::Tensor& e) { return e.square().sum(-1, /*keepdim=*/true); }

// min(1, sqrt(dim) / |e|)
at::Tensor share(const at::Tensor& square, int64_t dim) { return square.clamp_min(dim).reciprocal().mul(dim).sqrt(); }

}  // namespace

at::Tensor error_gradient(const at::Tensor& e) { return e * (2 * share(square_of(e), e.size(-1))); }

at::Tensor error_gradient_backward(const at::Tensor& e, const at::Tensor& d) {
  const at::Tensor square = square_of(e);
  const at::Tensor along =
      (e * d).sum(-1, /*keepdim=*/true).div_(square.clamp_min(e.size(-1))).mul_(square.gt(e.size(-1)));
  return at::addcmul(d, e, along, -1).mul_(2 * share(square, e.size(-1)));
}

}  // namespace lazy::fast_weights
