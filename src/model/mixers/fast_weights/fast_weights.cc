#include "model/mixers/fast_weights/fast_weights.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/mixers/fast_weights/backward.h"

namespace lazy {
namespace {

using fast_weights::Layout;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list listed(const FastWeightsResult& r) {
  variable_list list = {r.out};
  for (const auto* tensors : {&r.W, &r.b, &r.S}) list.insert(list.end(), tensors->begin(), tensors->end());
  return list;
}

FastWeightsResult unlisted(const variable_list& list, const Layout& layout) {
  auto from = list.begin() + 1;
  const auto take = [&](bool present) {
    const auto begin = from;
    from += present ? static_cast<std::ptrdiff_t>(layout.layers) : 0;
    return variable_list(begin, from);
  };
  FastWeightsResult r{.out = list[0]};
  if (layout.last_state) r.W = take(true), r.b = take(layout.bias), r.S = take(layout.momentum);
  return r;
}

struct FastWeightsNode : torch::autograd::Function<FastWeightsNode> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, int64_t layers, bool norm, bool bias,
                               bool momentum, bool tanh, bool rounded, bool last_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Layout layout{static_cast<size_t>(layers), norm, bias, momentum, tanh, rounded, last_state};
    fast_weights::SavedActivations course;
    const auto result = fast_weights::forward(fast_weights::unflatten(inputs.vec(), layout), layout, course);
    variable_list saved = inputs.vec();
    context->saved_data["layout"] = std::vector<int64_t>{
        layers, norm, bias, momentum, tanh, rounded, last_state, static_cast<int64_t>(inputs.size())};
    for (const at::Tensor& t : fast_weights::flatten(course)) saved.push_back(t);
    context->save_for_backward(saved);
    return listed(result);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto numbers = context->saved_data["layout"].toIntVector();
    const Layout layout{static_cast<size_t>(numbers[0]),
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
    const FastWeights d = fast_weights::backward(fast_weights::unflatten({saved.begin(), own}, layout), layout,
                                                 fast_weights::unflatten_course({own, saved.end()}, layout),
                                                 unlisted(contiguous, layout));
    variable_list out = fast_weights::flatten(d);
    out.resize(out.size() + 7);  // of the numbers
    return out;
  }
};

}  // namespace

FastWeightsResult run_fast_weights(const FastWeights& in) {
  const Layout layout = fast_weights::layout_of(in);
  return unlisted(
      FastWeightsNode::apply(at::TensorList(fast_weights::flatten(in)), static_cast<int64_t>(layout.layers),
                             layout.norm, layout.bias, layout.momentum, layout.tanh, layout.rounded, layout.last_state),
      layout);
}

}  // namespace lazy
