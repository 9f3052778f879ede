#include "model/blocks/part_visit.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call : torch::CustomClassHolder {
  explicit Call(std::function<void()> run) : run(std::move(run)) {}
  std::function<void()> run;
};

// Passes tensors on, and calls when the backward pass comes by.
struct AtBackward : torch::autograd::Function<AtBackward> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const c10::intrusive_ptr<Call>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return tensors.vec();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule())->run();
    variable_list out = gradients;
    out.emplace_back();
    return out;
  }
};

// The residual is undefined before the first layer.
Stream at_backward(const Stream& stream, std::function<void()> run) {
  variable_list tensors{stream.branch};
  if (stream.residual.defined()) tensors.push_back(stream.residual);
  tensors = AtBackward::apply(at::TensorList(tensors), c10::make_intrusive<Call>(std::move(run)));
  return {tensors[0], tensors.size() > 1 ? tensors[1] : at::Tensor()};
}

}  // namespace

Stream run_pre_forward_hooks(ShardHooks* hooks, size_t part, std::optional<size_t> next, Stream stream) {
  if (!hooks) return stream;
  hooks->before(part, next);
  return at_backward(stream, [hooks, part] { hooks->after(part); });
}

Stream run_post_forward_hooks(ShardHooks* hooks, size_t part, std::optional<size_t> previous, Stream stream) {
  if (!hooks) return stream;
  hooks->after(part);
  return at_backward(stream, [hooks, part, previous] { hooks->before(part, previous); });
}

}  // namespace lazy
