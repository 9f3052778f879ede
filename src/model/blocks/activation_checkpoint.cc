#include "model/blocks/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>

#include "model/blocks/activation_budget.h"

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
    out.emplace_back();  // the argument `body` is not a tensor and has no gradient
    return out;
  }
};

// Splits a list of tensors into the defined tensors and a mask that says which tensors of the list are defined.
// Autograd nodes accept only defined tensors.
struct Defined {
  explicit Defined(const std::vector<at::Tensor>& all) {
    for (const at::Tensor& t : all) {
      present.push_back(t.defined());
      if (t.defined()) tensors.push_back(t);
    }
  }
  std::vector<at::Tensor> tensors;
  std::vector<bool> present;
};

// Inverse of Defined: returns a list with one tensor per entry of `present`. The tensors of `values` are used, in
// order, where `present` is true; all other tensors are undefined.
variable_list whole(const std::vector<bool>& present, const variable_list& values) {
  variable_list all;
  size_t next = 0;
  for (const bool is : present) all.push_back(is ? values[next++] : at::Tensor());
  return all;
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// The function that recomputes the freed tensors, and weak references to their storages. The autograd nodes that saved
// these tensors own the storages and release them one after another in the backward pass. A strong reference here would
// keep the storages allocated for longer.
struct Filling : torch::CustomClassHolder {
  TensorFunction make;
  std::vector<std::optional<WeakStorage>> freed;  // one entry per result of `make`; nullopt: not freed
};

at::DataPtr take_memory(const c10::Storage& storage) {
  return storage.set_data_ptr(at::DataPtr(nullptr, storage.device()));
}

struct Refill : torch::autograd::Function<Refill> {
  static variable_list forward(AutogradContext* context, at::TensorList outputs, const variable_list& inputs,
                               const c10::intrusive_ptr<Filling>& filling) {
    context->save_for_backward(inputs);
    context->saved_data["filling"] = c10::IValue::make_capsule(filling);
    context->set_materialize_grads(false);
    return outputs.vec();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto filling = c10::static_intrusive_pointer_cast<Filling>(context->saved_data["filling"].toCapsule());
    const at::NoGradGuard no_grad;
    const variable_list made = filling->make(context->get_saved_variables());
    for (size_t i = 0; i < made.size(); ++i) {
      if (!filling->freed[i]) continue;
      if (auto storage = filling->freed[i]->lock()) storage->set_data_ptr_noswap(take_memory(made[i].storage()));
    }
    variable_list out = gradients;
    // Append undefined gradients for the arguments `inputs` and `filling`, because the inputs receive their gradients
    // through the graph of the outputs.
    out.resize(gradients.size() + 2);
    return out;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint_activations(const std::vector<at::Tensor>& inputs, TensorFunction function) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const Defined defined(inputs);
  const auto body = [present = defined.present, function = std::move(function)](const variable_list& in) {
    return function(whole(present, in));
  };
  return Recompute::apply(at::TensorList(defined.tensors), c10::make_intrusive<Body>(body));
}

std::vector<at::Tensor> keep_or_checkpoint(const std::vector<at::Tensor>& inputs, TensorFunction function) {
  ActivationBudget* const budget = at::GradMode::is_enabled() ? ActivationBudget::current() : nullptr;
  if (!budget) return checkpoint_activations(inputs, std::move(function));
  const auto measured = [budget](const TensorFunction& f, const std::vector<at::Tensor>& in) {
    const int64_t before = budget->allocated();
    std::vector<at::Tensor> out = f(in);
    budget->note_cost(budget->allocated() - before);
    return out;
  };
  if (budget->largest() == 0 || !budget->take(budget->largest())) {
    return checkpoint_activations(inputs, [measured, function = std::move(function)](const auto& in) {
      return at::GradMode::is_enabled() ? measured(function, in) : function(in);
    });
  }
  // The function gets views of its inputs. If it uses an input several times, autograd first adds the gradients of
  // these uses at the view, and then adds this sum to the gradients from other functions. Recomputation adds in the
  // same order, so that the gradients are bitwise equal with and without recomputation.
  std::vector<at::Tensor> own;
  for (const at::Tensor& t : inputs) own.push_back(t.defined() ? t.view_as(t) : t);
  return measured(function, own);
}

std::vector<at::Tensor> recompute_before_backward(const std::vector<at::Tensor>& made,
                                                  const std::vector<at::Tensor>& inputs, TensorFunction make,
                                                  const std::vector<at::Tensor>& outputs) {
  const auto with_gradient = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (!at::GradMode::is_enabled() || std::none_of(outputs.begin(), outputs.end(), with_gradient)) return outputs;
  const Defined in(inputs), out(outputs);
  const auto filling = c10::make_intrusive<Filling>();
  filling->make = [present = in.present, make = std::move(make)](const variable_list& t) {
    return make(whole(present, t));
  };
  const auto shared_with = [](const at::Tensor& t, const std::vector<at::Tensor>& others) {
    return std::any_of(others.begin(), others.end(), [&t](const at::Tensor& other) { return t.is_alias_of(other); });
  };
  for (const at::Tensor& t : made) {
    const bool kept = shared_with(t, in.tensors) || shared_with(t, out.tensors);
    filling->freed.push_back(kept ? std::nullopt : std::optional(t.storage().getWeakStorageImpl()));
    if (!kept) take_memory(t.storage());
  }
  variable_list detached;
  for (const at::Tensor& t : in.tensors) detached.push_back(t.detach());
  return whole(out.present, Refill::apply(at::TensorList(out.tensors), detached, filling));
}

ResidualStream checkpoint_activations(const ResidualStream& stream, std::function<void(ResidualStream&)> body) {
  const auto out = checkpoint_activations({stream.branch, stream.residual},
                                          [body = std::move(body)](const std::vector<at::Tensor>& in) {
                                            ResidualStream s{in[0], in[1]};  // in[1] is undefined in the first layer
                                            body(s);
                                            return std::vector<at::Tensor>{s.branch, s.residual};
                                          });
  return {out[0], out[1]};
}

}  // namespace lazy
