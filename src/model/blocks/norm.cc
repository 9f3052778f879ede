#include "model/blocks/norm.h"

#include <ATen/ATen.h>

#include "model/activation_hooks.h"
#include "model/config.h"
#include "ops/rms_norm.h"
#include "ops/skinny_gemm.h"

namespace lazy {

at::Tensor recompute_norm(const at::Tensor& saved, const at::Tensor& weight, double eps) {
  return (weight.defined() ? ops::rms_norm(saved, weight, eps) : saved).reshape({-1, saved.size(-1)});
}

NormWeights make_norm(const ModelConfig& c, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  NormWeights norm{
      at::full({c.hidden_size}, c.norm.unit_offset ? 0 : 1, options).requires_grad_(true), {}, c.norm.unit_offset};
  if (c.norm.kind == NormKind::layer) norm.bias = at::zeros({c.hidden_size}, options).requires_grad_(true);
  return norm;
}

at::Tensor NormWeights::factor() const { return unit_offset ? weight + 1 : weight; }

NormOutput normalize(ResidualStream& stream, const NormWeights& norm, double eps) {
  const at::Tensor weight = norm.factor();
  if (norm.bias.defined()) {
    stream.residual = sum_of(stream);
    const at::Tensor& x = stream.residual;
    const at::Tensor y = at::layer_norm(x.to(at::kFloat), weight.sizes(), weight, norm.bias, eps).to(x.scalar_type());
    return {y, x, weight, eps, norm.bias};
  }
  if (!stream.residual.defined()) {
    stream.residual = stream.branch;
    return {ops::rms_norm(stream.branch, weight, eps), stream.residual, weight, eps};
  }
  auto [y, sum] = ops::add_rms_norm(stream.branch, stream.residual, weight, eps);
  stream.residual = sum;
  return {y, sum, weight, eps};
}

NormOutput normalize_later(ResidualStream& stream, const NormWeights& norm, double eps) {
  const at::Tensor rows = stream.branch.reshape({-1, stream.branch.size(-1)});
  if (at::GradMode::is_enabled() || norm.bias.defined() || !rows.is_cuda() || !ops::supports_skinny_gemm(rows))
    return normalize(stream, norm, eps);
  stream = {sum_of(stream), {}};
  NormOutput out{at::Tensor(), stream.branch, norm.factor(), eps};
  out.pending = true;
  return out;
}

at::Tensor sum_of(const ResidualStream& stream) {
  return stream.residual.defined() ? stream.branch + stream.residual : stream.branch;
}

void run_residual_hooks(ResidualStream& stream, const LayerHooks& hooks, const char* point) {
  if (!hooks.wants(point)) return;
  const at::Tensor sum = sum_of(stream), replaced = hooks(point, sum);
  if (!replaced.is_same(sum)) stream = {replaced, {}};
}

}  // namespace lazy
