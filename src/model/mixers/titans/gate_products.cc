#include "model/mixers/titans/gate_products.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/fast_weights.h"

namespace lazy {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns a matrix (..., T, T) with the elements gate_{s+1} * ... * gate_t for s <= t and 0 for s > t. The input (...,
// T) contains the logarithms of the gates. The sum of logarithms is computed separately for each element, because the
// difference of two large cumulative sums would lose precision to cancellation.
at::Tensor products_between(const at::Tensor& log_gate) {
  auto sizes = log_gate.sizes().vec();
  sizes.push_back(sizes.back());
  return log_gate.unsqueeze(-1).expand(sizes).tril(-1).cumsum(-2).exp().tril();
}

const ops::FastWeightsKernels* factor_kernels_for(const at::Tensor& step, bool rounded) {
  if (!rounded || step.scalar_type() != at::kFloat || step.size(-1) != ops::kMemoryTokens || step.numel() == 0) {
    return nullptr;
  }
  return ops::fast_weights_kernels(step.device().type(), step.size(-1), /*H=*/0, /*momentum=*/true);
}

GateProducts from_list(const variable_list& t) { return {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]}; }

// Returns the arguments of the kernel: the gates, and the products of the gates (forward pass) or the gradients with
// respect to these products (backward pass).
ops::MemoryFactors factor_arguments(const variable_list& gates, const variable_list& products) {
  const auto in = [&](size_t n) { return gates[n].const_data_ptr<float>(); };
  const auto out = [&](size_t n) { return products[n].mutable_data_ptr<float>(); };
  return {.chunks = gates[0].numel() / ops::kMemoryTokens,
          .step = in(0),
          .log_momentum = in(1),
          .log_keep = in(2),
          .read_steps = out(0),
          .read_keep = out(1),
          .read_carry = out(2),
          .steps = out(3),
          .momentum_steps = out(4),
          .keep = out(5),
          .carry = out(6),
          .momentum_keep = out(7)};
}

variable_list run(const ops::FastWeightsKernels& kernels, const variable_list& gates) {
  const c10::DeviceGuard guard(gates[0].device());
  const auto make = [&](int64_t rows, int64_t columns) {
    auto sizes = gates[0].sizes().vec();
    sizes.back() = rows, sizes.push_back(columns);
    return at::empty(sizes, gates[0].options().requires_grad(false));
  };
  constexpr int64_t T = ops::kMemoryTokens;
  variable_list products = {make(T, T), make(T, 1), make(T, 1), make(T, 1),
                            make(T, 1), make(1, 1), make(1, 1), make(1, 1)};
  kernels.factors(factor_arguments(gates, products));
  return products;
}

struct GateProductsNode : torch::autograd::Function<GateProductsNode> {
  static variable_list forward(AutogradContext* context, const at::Tensor& step, const at::Tensor& log_momentum,
                               const at::Tensor& log_keep) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({step, log_momentum, log_keep});
    return run(*factor_kernels_for(step, true), {step, log_momentum, log_keep});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list gates = context->get_saved_variables();
    const c10::DeviceGuard device(gates[0].device());
    variable_list d;
    for (const at::Tensor& x : gradients) d.push_back(x.contiguous());
    variable_list out;
    for (const at::Tensor& x : gates) out.push_back(at::empty_like(x));
    ops::MemoryFactors factors = factor_arguments(gates, d);
    factors.d_step = out[0].mutable_data_ptr<float>(), factors.d_log_momentum = out[1].mutable_data_ptr<float>();
    factors.d_log_keep = out[2].mutable_data_ptr<float>();
    factor_kernels_for(gates[0], true)->factors_backward(factors);
    return out;
  }
};

}  // namespace

GateProducts gate_products(const at::Tensor& step, const at::Tensor& log_momentum, const at::Tensor& log_keep,
                           bool rounded) {
  if (const auto* kernels = factor_kernels_for(step, rounded)) {
    const variable_list gates = {step.contiguous(), log_momentum.contiguous(), log_keep.contiguous()};
    return from_list(at::GradMode::is_enabled() ? GateProductsNode::apply(gates[0], gates[1], gates[2])
                                                : run(*kernels, gates));
  }
  const at::Tensor forgetting = products_between(log_keep), momentum = products_between(log_momentum);
  const at::Tensor since_start = log_momentum.cumsum(-1).exp().unsqueeze(-1);  // (..., T, 1)
  const int64_t last = step.size(-1) - 1;
  GateProducts out;
  out.read_keep = log_keep.cumsum(-1).exp().unsqueeze(-1);
  out.read_carry = at::matmul(forgetting, since_start);
  out.read_steps = at::matmul(forgetting, momentum) * step.unsqueeze(-2);
  out.steps = out.read_steps.select(-2, last).unsqueeze(-1);
  out.momentum_steps = (momentum.select(-2, last) * step).unsqueeze(-1);
  out.keep = out.read_keep.narrow(-2, last, 1), out.carry = out.read_carry.narrow(-2, last, 1);
  out.momentum_keep = since_start.narrow(-2, last, 1);
  return out;
}

}  // namespace lazy
