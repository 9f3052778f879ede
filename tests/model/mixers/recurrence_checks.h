// Comparisons that every time recurrence is put through: its fast form against its definition.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

namespace lazy::testing {

using Tensors = std::vector<at::Tensor>;

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}

inline void expect_close(const Tensors& got, const Tensors& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t n = 0; n < got.size(); ++n) {
    ASSERT_EQ(got[n].sizes(), want[n].sizes()) << what << " " << n;
    EXPECT_LE(largest_difference(got[n], want[n]), tolerance * (1 + want[n].abs().max().item<double>()))
        << what << " " << n;
  }
}

// Gradients of sum(f(leaves) * fixed noise) by every leaf.
inline Tensors gradients_of(const std::function<Tensors(const Tensors&)>& f, const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  at::Generator generator = at::detail::createCPUGenerator(5);
  at::Tensor sum = at::zeros({}, inputs[0].options());
  for (const at::Tensor& y : f(leaves))
    sum = sum + (y * at::randn(y.sizes(), generator, y.options().requires_grad(false))).sum();
  return torch::autograd::grad({sum}, leaves, {}, {}, false, /*allow_unused=*/false);
}

// The same by central differences in random directions: one number an input.
inline void expect_gradients(const std::function<Tensors(const Tensors&)>& f, const Tensors& inputs) {
  const Tensors gradients = gradients_of(f, inputs);
  const auto value = [&](const Tensors& at) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    double sum = 0;
    for (const at::Tensor& y : f(at)) sum += (y * at::randn(y.sizes(), generator, y.options())).sum().item<double>();
    return sum;
  };
  at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const at::Tensor direction = at::randn_like(inputs[n]);
    Tensors up = inputs, down = inputs;
    up[n] = inputs[n] + kStep * direction, down[n] = inputs[n] - kStep * direction;
    const double measured = (value(up) - value(down)) / (2 * kStep);
    const double given = (gradients[n] * direction).sum().item<double>();
    EXPECT_NEAR(given, measured, 1e-6 * (1 + std::abs(measured))) << "input " << n;
  }
}

}  // namespace lazy::testing
