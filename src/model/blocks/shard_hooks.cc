#include "model/blocks/shard_hooks.h"

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

// The identity function; its backward pass runs `call`.
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

// Returns the stream with an autograd node that calls run() in the backward pass. stream.residual is undefined before
// the first layer.
ResidualStream at_backward(const ResidualStream& stream, std::function<void()> run) {
  variable_list tensors{stream.branch};
  if (stream.residual.defined()) tensors.push_back(stream.residual);
  tensors = AtBackward::apply(at::TensorList(tensors), c10::make_intrusive<Call>(std::move(run)));
  return {tensors[0], tensors.size() > 1 ? tensors[1] : at::Tensor()};
}

}  // namespace

void run_pre_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> next,
                           std::vector<ResidualStream>& streams) {
  if (!hooks) return;
  hooks->unshard(unit, next);
  if (!at::GradMode::is_enabled()) return;
  for (ResidualStream& stream : streams) stream = at_backward(stream, [hooks, unit] { hooks->reshard(unit); });
}

void run_post_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> previous,
                            std::vector<ResidualStream>& streams) {
  if (!hooks) return;
  hooks->reshard(unit);
  if (!at::GradMode::is_enabled()) return;
  for (ResidualStream& stream : streams) {
    stream = at_backward(stream, [hooks, unit, previous] { hooks->unshard(unit, previous); });
  }
}

}  // namespace lazy
