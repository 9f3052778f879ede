#include "model/mixers/fast_weights/inner_loss.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "model/mixers/fast_weights/fast_weights.h"

namespace lazy::fast_weights {

namespace {

const char* approximation(bool tanh) { return tanh ? "tanh" : "none"; }

}  // namespace

at::Tensor Gelu::operator()(const at::Tensor& z) const { return at::gelu(z, approximation(tanh)); }

at::Tensor Gelu::backward(const at::Tensor& gradient, const at::Tensor& z) const {
  return at::gelu_backward(gradient, z, approximation(tanh));
}

void Gelu::write(at::Tensor out, const at::Tensor& z) const { at::gelu_out(out, z, approximation(tanh)); }

void Gelu::write_backward(at::Tensor out, const at::Tensor& gradient, const at::Tensor& z) const {
  at::gelu_backward_out(out, gradient, z, approximation(tanh));
}

at::Tensor Gelu::second(const at::Tensor& z) const {
  const at::Tensor square = z * z;
  if (!tanh) {  // second derivative of exact GELU: (2 - z^2) phi(z), with the normal density phi
    const double scale = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    at::Tensor density = square.mul(-0.5).exp_();
    return density.mul_(square.neg_().add_(2)).mul_(scale);
  }
  // Second derivative of tanh-GELU. With u = c (z + a z^3) and t = tanh u, it is (1 - t^2) (u' + z (u'' / 2 - t u'^2)),
  // where z u'' / 2 = 3 c a z^2.
  constexpr double kA = 0.044715;
  const double c = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const at::Tensor t = (square * (c * kA) + c).mul_(z).tanh_();
  at::Tensor slope = square * (3 * kA * c) + c;
  at::Tensor out = slope.square().mul_(t).mul_(z).neg_();
  out.add_(slope).add_(square, 3 * kA * c);
  return out.mul_(t.square_().neg_().add_(1));
}

namespace {

// Returns the gradient of LayerNorm with respect to its input z, where x is the gradient with respect to the normalized
// rows n = (z - mean) rstd: rstd (x - mean(x) - n mean(x n)).
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
  // d_n is the gradient with respect to n. G depends on n through h and through the term n mean(h n).
  at::Tensor d_n = d_h * square_;
  d_n.addcmul_(d, at_chunk(projection_), -1).addcmul_(at_chunk(h_), row_mean(d * n).mul_(rstd), -1);
  // The last term is the gradient through rstd, a factor of G, with the derivative d rstd / d z = -rstd^2 n / dim.
  return through(d_n, z, mean, rstd).addcmul_(n, row_mean(d * G).mul_(rstd), -1);
}

at::Tensor InnerNormBackward::by_weight() const {
  return at::addcmul(miss_, n_, weight_).mul_(d_h_).sum(at::IntArrayRef{0, 2}).unsqueeze(1);
}

at::Tensor InnerNormBackward::by_bias() const { return d_h_.sum(at::IntArrayRef{0, 2}).unsqueeze(1) * weight_; }

namespace {

at::Tensor square_of(const at::Tensor& e) { return e.square().sum(-1, /*keepdim=*/true); }

// Returns min(1, sqrt(dim) / |e|), where square = |e|^2.
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
