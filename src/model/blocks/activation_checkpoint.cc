#include "model/blocks/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace lazy {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Body : torch::CustomClassHolder {
  explicit Body(TensorFunction run) : run(std::move(run)) {}
  TensorFunction run;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, const c10::intrusive_ptr<Body>& body) {
    context->save_for_backward(inputs.vec());
    context->saved_data["body"] = c10::IValue::make_capsule(body);
    context->set_materialize_grads(false);
    return body->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto body = c10::static_intrusive_pointer_cast<Body>(context->saved_data["body"].toCapsule());
    variable_list inputs = context->get_saved_variables(), outputs, theirs, out;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = inputs[i].detach().requires_grad_(context->needs_input_grad(i));
    }
    {
      const at::AutoGradMode record(true);
      const variable_list results = body->run(inputs);
      for (size_t i = 0; i < results.size(); ++i) {
        if (!gradients[i].defined() || !results[i].requires_grad()) continue;
        outputs.push_back(results[i]);
        theirs.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(outputs, theirs);
    for (const at::Tensor& input : inputs) out.push_back(input.grad());
    out.emplace_back();  // no gradient for the body
    return out;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint_activations(const std::vector<at::Tensor>& inputs, TensorFunction function) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  std::vector<at::Tensor> defined;  // autograd nodes accept only defined tensors
  std::vector<bool> present;
  for (const at::Tensor& t : inputs) {
    present.push_back(t.defined());
    if (t.defined()) defined.push_back(t);
  }
  const auto body = [present, function = std::move(function)](const variable_list& in) {
    variable_list all;
    size_t next = 0;
    for (const bool is : present) all.push_back(is ? in[next++] : at::Tensor());
    return function(all);
  };
  return Recompute::apply(at::TensorList(defined), c10::make_intrusive<Body>(body));
}

ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body) {
  const auto out = checkpoint_activations({stream.branch, stream.residual},
                                          [body = std::move(body)](const std::vector<at::Tensor>& in) {
                                            ResidualStream s{in[0], in[1]};  // the first layer's stream has no residual
                                            body(s);
                                            return std::vector<at::Tensor>{s.branch, s.residual};
                                          });
  return {out[0], out[1]};
}

}  // namespace lazy
