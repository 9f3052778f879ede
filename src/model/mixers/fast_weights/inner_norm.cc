#include "model/mixers/fast_weights/inner_norm.h"

#include <ATen/ATen.h>

#include "model/mixers/fast_weights/fast_weights.h"

namespace lazy::fast_weights {
namespace {

// rstd (x - mean(x) - n mean(x n)): LayerNorm's gradient by its input.
at::Tensor through(const at::Tensor& x, const at::Tensor& z, const at::Tensor& mean, const at::Tensor& rstd) {
  return std::get<0>(at::native_layer_norm_backward(x, z, {z.size(-1)}, mean, rstd, {}, {}, {true, false, false}));
}

at::Tensor row_mean(const at::Tensor& x) { return x.mean(-1, /*keepdim=*/true); }

}  // namespace

at::Tensor InnerNorm::scaled(const at::Tensor& z) const {
  return at::layer_norm(z, {z.size(-1)}, {}, {}, kInnerNormEps) * weight;
}

at::Tensor InnerNorm::gradient(const at::Tensor& z, const at::Tensor& offset) const {
  const auto [n, mean, rstd] = at::native_layer_norm(z, {z.size(-1)}, {}, {}, kInnerNormEps);
  return through(at::addcmul(offset, n, weight).mul_(weight), z, mean, rstd);
}

InnerNormBackward::InnerNormBackward(const at::Tensor& weight, const at::Tensor& z, const at::Tensor& offset)
    : weight_(weight), square_(weight.square()), z_(z), d_h_(at::empty_like(z)) {
  std::tie(n_, mean_, rstd_) = at::native_layer_norm(z, {z.size(-1)}, {}, {}, kInnerNormEps);
  miss_ = at::addcmul(offset, n_, weight);
  h_ = miss_ * weight;
  projection_ = row_mean(h_ * n_).mul_(rstd_);
}

at::Tensor InnerNormBackward::by_z(int64_t chunk, const at::Tensor& d, const at::Tensor& G) {
  const auto at_chunk = [&](const at::Tensor& x) { return x.select(0, chunk); };
  const at::Tensor z = at_chunk(z_), mean = at_chunk(mean_), rstd = at_chunk(rstd_), n = at_chunk(n_);
  const at::Tensor d_h = through(d, z, mean, rstd);
  at_chunk(d_h_).copy_(d_h);
  // By n: through h, and through the projection on n.
  at::Tensor d_n = d_h * square_;
  d_n.addcmul_(d, at_chunk(projection_), -1).addcmul_(at_chunk(h_), row_mean(d * n).mul_(rstd), -1);
  // By rstd, a factor of G: rstd moves with z by -rstd^2 n / dim.
  return through(d_n, z, mean, rstd).addcmul_(n, row_mean(d * G).mul_(rstd), -1);
}

at::Tensor InnerNormBackward::by_weight() const {
  return at::addcmul(miss_, n_, weight_).mul_(d_h_).sum(at::IntArrayRef{0, 2}).unsqueeze(1);
}

at::Tensor InnerNormBackward::by_bias() const { return d_h_.sum(at::IntArrayRef{0, 2}).unsqueeze(1) * weight_; }

}  // namespace lazy::fast_weights
