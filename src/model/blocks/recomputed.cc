#include "model/blocks/recomputed.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace lazy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Body : torch::CustomClassHolder {
  explicit Body(std::function<void(Stream&)> run) : run(std::move(run)) {}
  std::function<void(Stream&)> run;
};

// The residual is undefined before the first layer.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context, const at::Tensor& branch,
                               const std::optional<at::Tensor>& residual,
                               const c10::intrusive_ptr<Body>& body) {
    context->save_for_backward({branch, residual.value_or(at::Tensor())});
    context->saved_data["body"] = c10::IValue::make_capsule(body);
    Stream stream{branch, residual.value_or(at::Tensor())};
    body->run(stream);
    return {stream.branch, stream.residual};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto body = c10::static_intrusive_pointer_cast<Body>(context->saved_data["body"].toCapsule());
    const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.detach().requires_grad_(true) : at::Tensor(); };
    const Stream input{leaf(saved[0]), leaf(saved[1])};
    Stream stream = input;
    {
      const at::AutoGradMode record(true);
      body->run(stream);
    }
    variable_list outputs, theirs;
    for (const auto& [output, gradient] : {std::pair{stream.branch, gradients[0]}, std::pair{stream.residual, gradients[1]}}) {
      if (!gradient.defined() || !output.requires_grad()) continue;
      outputs.push_back(output);
      theirs.push_back(gradient);
    }
    torch::autograd::backward(outputs, theirs);
    const auto gradient_of = [](const at::Tensor& t) { return t.defined() ? t.grad() : at::Tensor(); };
    return {gradient_of(input.branch), gradient_of(input.residual), {}};
  }
};

}  // namespace

Stream recomputed(const Stream& stream, std::function<void(Stream&)> body) {
  const auto residual = stream.residual.defined() ? std::optional(stream.residual) : std::nullopt;
  const variable_list out = Recomputed::apply(stream.branch, residual, c10::make_intrusive<Body>(std::move(body)));
  return {out[0], out[1]};
}

}  // namespace lazy
