#include "model/mixers/fast_weights/fast_weights.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/mixers/fast_weights/internal.h"

namespace lazy::fast_weights {

TensorSpec spec_of(const FastWeights& in) {
  const TensorSpec spec{in.W.size(),  in.norm_weight.defined(), !in.b.empty(), !in.S.empty(), in.tanh, in.rounded,
                        in.last_state};
  TORCH_CHECK(!(spec.bias && spec.momentum), "fast weights: biases and momentum cannot be combined");
  for (const at::Tensor* t :
       {&in.read_keep, &in.read_carry, &in.momentum_steps, &in.keep, &in.carry, &in.momentum_keep}) {
    TORCH_CHECK(t->defined() == spec.momentum,
                "fast weights: S, read_keep, read_carry, momentum_steps, keep, carry and momentum_keep must be all "
                "defined or all undefined");
  }
  return spec;
}

std::vector<at::Tensor*> tensor_slots(FastWeights& in, const TensorSpec& spec) {
  std::vector<at::Tensor*> all = {&in.q, &in.k, &in.target, &in.read_steps, &in.steps};
  if (spec.norm) all.insert(all.end(), {&in.norm_weight, &in.norm_bias});
  if (spec.momentum) {
    all.insert(all.end(), {&in.read_keep, &in.read_carry, &in.momentum_steps, &in.keep, &in.carry, &in.momentum_keep});
  }
  const auto list = [&](std::vector<at::Tensor>& tensors, bool present) {
    tensors.resize(present ? spec.layers : 0);
    for (at::Tensor& t : tensors) all.push_back(&t);
  };
  list(in.W, true), list(in.b, spec.bias), list(in.S, spec.momentum);
  return all;
}

std::vector<at::Tensor> flatten(const FastWeights& in) {
  FastWeights copy = in;
  std::vector<at::Tensor> list;
  for (const at::Tensor* t : tensor_slots(copy, spec_of(in))) list.push_back(*t);
  return list;
}

FastWeights unflatten(const std::vector<at::Tensor>& list, const TensorSpec& spec) {
  FastWeights in;
  in.tanh = spec.tanh, in.rounded = spec.rounded, in.last_state = spec.last_state;
  size_t next = 0;
  for (at::Tensor* t : tensor_slots(in, spec)) *t = list[next++];
  return in;
}

at::Tensor to_chunks(const at::Tensor& x, int64_t chunks) {
  return x.unflatten(2, {chunks, x.size(2) / chunks}).movedim(2, 0).contiguous().flatten(1, 2);
}

at::Tensor from_chunks(const at::Tensor& x, int64_t batch) {
  return x.unflatten(1, {batch, x.size(1) / batch}).movedim(0, 2).flatten(2, 3);
}

at::Tensor for_all(const at::Tensor& of_heads, int64_t batch) {
  return of_heads.unsqueeze(0).expand({batch, -1, -1, -1}).flatten(0, 1);
}

}  // namespace lazy::fast_weights

namespace lazy {

namespace {

using fast_weights::TensorSpec;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list pack_result(const FastWeightsResult& r) {
  variable_list list = {r.out};
  for (const auto* tensors : {&r.W, &r.b, &r.S}) list.insert(list.end(), tensors->begin(), tensors->end());
  return list;
}

FastWeightsResult unpack_result(const variable_list& list, const TensorSpec& spec) {
  auto from = list.begin() + 1;
  const auto take = [&](bool present) {
    const auto begin = from;
    from += present ? static_cast<std::ptrdiff_t>(spec.layers) : 0;
    return variable_list(begin, from);
  };
  FastWeightsResult r{.out = list[0]};
  if (spec.last_state) r.W = take(true), r.b = take(spec.bias), r.S = take(spec.momentum);
  return r;
}

struct FastWeightsNode : torch::autograd::Function<FastWeightsNode> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, int64_t layers, bool norm, bool bias,
                               bool momentum, bool tanh, bool rounded, bool last_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const TensorSpec spec{static_cast<size_t>(layers), norm, bias, momentum, tanh, rounded, last_state};
    fast_weights::SavedActivations activations;
    const auto result =
        fast_weights::forward(fast_weights::unflatten(inputs.vec(), spec), spec, activations, /*for_backward=*/true);
    variable_list saved = inputs.vec();
    context->saved_data["layout"] = std::vector<int64_t>{
        layers, norm, bias, momentum, tanh, rounded, last_state, static_cast<int64_t>(inputs.size())};
    for (const at::Tensor& t : fast_weights::flatten(activations)) saved.push_back(t);
    context->save_for_backward(saved);
    return pack_result(result);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto numbers = context->saved_data["layout"].toIntVector();
    const TensorSpec spec{static_cast<size_t>(numbers[0]),
                          numbers[1] != 0,
                          numbers[2] != 0,
                          numbers[3] != 0,
                          numbers[4] != 0,
                          numbers[5] != 0,
                          numbers[6] != 0};
    const variable_list saved = context->get_saved_variables();
    const auto own = saved.begin() + numbers[7];
    variable_list contiguous;
    for (const at::Tensor& t : gradients) contiguous.push_back(t.contiguous());
    const FastWeights d = fast_weights::backward(fast_weights::unflatten({saved.begin(), own}, spec), spec,
                                                 fast_weights::unflatten_activations({own, saved.end()}, spec),
                                                 unpack_result(contiguous, spec));
    variable_list out = fast_weights::flatten(d);
    out.resize(out.size() + 7);  // undefined gradients for the arguments that are not tensors
    return out;
  }
};

}  // namespace

FastWeightsResult run_fast_weights(const FastWeights& in) {
  const TensorSpec spec = fast_weights::spec_of(in);
  if (!at::GradMode::is_enabled()) {
    fast_weights::SavedActivations unused;
    return fast_weights::forward(in, spec, unused, /*for_backward=*/false);
  }
  return unpack_result(
      FastWeightsNode::apply(at::TensorList(fast_weights::flatten(in)), static_cast<int64_t>(spec.layers), spec.norm,
                             spec.bias, spec.momentum, spec.tanh, spec.rounded, spec.last_state),
      spec);
}

}  // namespace lazy
