#include "model/mixers/block_weights.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor block_weights(const at::Tensor& s, const at::Tensor& visible, const at::Tensor& count, const at::Tensor& tau,
                         const ops::AttentionOptions& options) {
  if (options.normalizer == "sigmoid") return at::sigmoid(s - count.log());
  if (options.normalizer == "softmax_sink") {
    const at::Tensor sink = options.sink.to(s.scalar_type()).view({1, -1, 1, 1}).expand({s.size(0), -1, s.size(2), 1});
    return at::softmax(at::cat({s, sink}, 3), 3).narrow(3, 0, s.size(3));
  }
  const at::Tensor p = at::softmax(s, 3);
  if (options.normalizer == "softmax") return p;
  const at::Tensor offset = tau.to(s.scalar_type()).view({1, -1, 1, 1});
  return at::relu(p + (options.offset == "per_visible" ? offset / count : offset)) * visible;
}

}  // namespace lazy
