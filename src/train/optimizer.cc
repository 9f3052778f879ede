#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <set>

#include "core/error.h"

namespace lazy::train {

AdamW::AdamW(const Parameters& parameters, const AdamWOptions& options,
             const std::function<bool(const std::string&)>& decays)
    : options_(options) {
  at::NoGradGuard no_grad;
  groups_.resize(2);
  groups_[0].weight_decay = options.weight_decay;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    if (!steps_tensor_.defined())
      steps_tensor_ = at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false));
    Group& group = groups_[!decays || decays(name) ? 0 : 1];
    group.names.push_back(name);
    group.parameters.push_back(parameter);
    group.exp_avg.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    group.exp_avg_sq.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    group.steps.push_back(steps_tensor_);
  }
}

double AdamW::gradient_norm() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups_) {
    for (const auto& parameter : group.parameters) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
  }
  if (gradients.empty()) return 0;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2))).item<double>();
}

void AdamW::step(double lr, double norm, double max_norm) {
  at::NoGradGuard no_grad;
  ++steps_taken_;
  if (steps_tensor_.defined()) steps_tensor_.fill_(static_cast<double>(steps_taken_));
  // The fused kernel divides the gradients by grad_scale, so clipping needs no separate pass over the gradients.
  std::optional<at::Tensor> grad_scale;
  if (max_norm > 0 && norm > max_norm) grad_scale = at::full_like(steps_tensor_, norm / max_norm);
  for (auto& group : groups_) {
    if (group.parameters.empty()) continue;
    std::vector<at::Tensor> gradients;
    gradients.reserve(group.parameters.size());
    for (const auto& parameter : group.parameters) {
      gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
    }
    at::_fused_adamw_(group.parameters, gradients, group.exp_avg, group.exp_avg_sq, {}, group.steps, lr, options_.beta1,
                      options_.beta2, group.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                      grad_scale, {});
    // The fused kernel does not increment the version counters of the parameters. Cached copies in the compute dtype
    // rely on them to detect changed weights.
    for (const auto& parameter : group.parameters) torch::autograd::impl::bump_version(parameter);
  }
  zero_grad();
}

void AdamW::zero_grad() {
  for (auto& group : groups_) {
    for (auto& parameter : group.parameters) parameter.mutable_grad().reset();
  }
}

AdamW::Parameters AdamW::state() const {
  Parameters out{{"step", at::scalar_tensor(steps_taken_, at::kLong)}};
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      out.emplace_back("exp_avg." + group.names[i], group.exp_avg[i]);
      out.emplace_back("exp_avg_sq." + group.names[i], group.exp_avg_sq[i]);
    }
  }
  return out;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& state, const std::string& file) {
  at::NoGradGuard no_grad;
  const auto get = [&](const std::string& name) -> const at::Tensor& {
    const auto found = state.find(name);
    if (found == state.end()) fail("checkpoint", "{}: missing tensor '{}'", file, name);
    return found->second;
  };
  const auto restore = [&](const std::string& name, at::Tensor& into) {
    const at::Tensor& from = get(name);
    if (from.sizes() != into.sizes() || from.scalar_type() != into.scalar_type()) {
      fail("checkpoint", "{}: {}: expected {}, found {}", file, name, c10::str(into.scalar_type(), " ", into.sizes()),
           c10::str(from.scalar_type(), " ", from.sizes()));
    }
    into.copy_(from);
  };
  std::set<std::string> known{"step"};
  for (auto& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      restore("exp_avg." + group.names[i], group.exp_avg[i]);
      restore("exp_avg_sq." + group.names[i], group.exp_avg_sq[i]);
      known.insert({"exp_avg." + group.names[i], "exp_avg_sq." + group.names[i]});
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!known.count(name))
      fail("checkpoint", "{}: tensor '{}' does not belong to a parameter of this model", file, name);
  }
  const at::Tensor& step = get("step");
  if (step.numel() != 1 || step.scalar_type() != at::kLong) fail("checkpoint", "{}: step: expected one int64", file);
  steps_taken_ = step.item<int64_t>();
}

}  // namespace lazy::train
