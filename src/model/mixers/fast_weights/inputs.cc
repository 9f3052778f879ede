#include "model/mixers/fast_weights/inputs.h"

#include <ATen/ATen.h>

namespace lazy::fast_weights {

Layout layout_of(const FastWeights& in) {
  const Layout layout{in.W.size(),  in.norm_weight.defined(), !in.b.empty(), !in.S.empty(), in.tanh, in.rounded,
                      in.last_state};
  TORCH_CHECK(!(layout.bias && layout.momentum), "fast weights: expected no biases beside momentum");
  for (const at::Tensor* t :
       {&in.read_keep, &in.read_carry, &in.momentum_steps, &in.keep, &in.carry, &in.momentum_keep}) {
    TORCH_CHECK(t->defined() == layout.momentum, "fast weights: expected every coefficient of momentum, or none");
  }
  return layout;
}

std::vector<at::Tensor*> places(FastWeights& in, const Layout& layout) {
  std::vector<at::Tensor*> all = {&in.q, &in.k, &in.target, &in.read_steps, &in.steps};
  if (layout.norm) all.insert(all.end(), {&in.norm_weight, &in.norm_bias});
  if (layout.momentum) {
    all.insert(all.end(), {&in.read_keep, &in.read_carry, &in.momentum_steps, &in.keep, &in.carry, &in.momentum_keep});
  }
  const auto list = [&](std::vector<at::Tensor>& tensors, bool present) {
    tensors.resize(present ? layout.layers : 0);
    for (at::Tensor& t : tensors) all.push_back(&t);
  };
  list(in.W, true), list(in.b, layout.bias), list(in.S, layout.momentum);
  return all;
}

std::vector<at::Tensor> flatten(const FastWeights& in) {
  FastWeights copy = in;
  std::vector<at::Tensor> list;
  for (const at::Tensor* t : places(copy, layout_of(in))) list.push_back(*t);
  return list;
}

FastWeights unflatten(const std::vector<at::Tensor>& list, const Layout& layout) {
  FastWeights in;
  in.tanh = layout.tanh, in.rounded = layout.rounded, in.last_state = layout.last_state;
  size_t next = 0;
  for (at::Tensor* t : places(in, layout)) *t = list[next++];
  return in;
}

}  // namespace lazy::fast_weights
