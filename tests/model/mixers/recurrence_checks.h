// Comparisons of the fast implementation of a recurrence with its definition.
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

// Returns the gradients of sum(f(leaves) * fixed noise) with respect to every leaf.
inline Tensors gradients_of(const std::function<Tensors(const Tensors&)>& f, const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  at::Generator generator = at::detail::createCPUGenerator(5);
  at::Tensor sum = at::zeros({}, inputs[0].options());
  for (const at::Tensor& y : f(leaves))
    sum = sum + (y * at::randn(y.sizes(), generator, at::kDouble).to(y.options().requires_grad(false))).sum();
  return torch::autograd::grad({sum}, leaves, {}, {}, false, /*allow_unused=*/false);
}

// Compares the gradients of gradients_of() with central differences in random directions, one direction per input.
inline void expect_gradients(const std::function<Tensors(const Tensors&)>& f, const Tensors& inputs) {
  const Tensors gradients = gradients_of(f, inputs);
  const auto value = [&](const Tensors& at) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    double sum = 0;
    for (const at::Tensor& y : f(at))
      sum += (y * at::randn(y.sizes(), generator, at::kDouble).to(y.options())).sum().item<double>();
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

// Checks the precision of `fast` on the test device. Results and gradients are compared with float64. In fp32, the
// error of `fast` must be at most twice the error of the definition in fp32. With `rounded`, it must be at most twice
// the error of the definition whose inputs are rounded to bf16. Each result and each gradient is checked separately.
inline void expect_precision(const std::function<Tensors(const Tensors&, bool rounded)>& fast,
                             const std::function<Tensors(const Tensors&)>& definition, const Tensors& inputs,
                             at::Device device) {
  const auto all = [](const std::function<Tensors(const Tensors&)>& f, const Tensors& in) {
    Tensors out = f(in);
    for (const at::Tensor& gradient : gradients_of(f, in)) out.push_back(gradient);
    for (at::Tensor& t : out) t = t.detach().to(at::kCPU, at::kDouble);
    return out;
  };
  const auto as = [&](at::ScalarType rounded, at::ScalarType type, at::Device where) {
    Tensors out;
    for (const at::Tensor& x : inputs) out.push_back(x.to(rounded).to(type).to(where));
    return out;
  };
  const Tensors exact = all(definition, inputs), single = all(definition, as(at::kFloat, at::kFloat, at::kCPU)),
                of_bf16 = all(definition, as(at::kBFloat16, at::kDouble, at::kCPU));
  for (const bool rounded : {false, true}) {
    const Tensors got = all([&](const Tensors& in) { return fast(in, rounded); }, as(at::kFloat, at::kFloat, device));
    const Tensors& reference = rounded ? of_bf16 : single;
    ASSERT_EQ(got.size(), exact.size());
    for (size_t n = 0; n < got.size(); ++n) {
      const double size = exact[n].norm().item<double>(), error = (got[n] - exact[n]).norm().item<double>();
      EXPECT_LE(error, 2 * (reference[n] - exact[n]).norm().item<double>() + 1e-6 * size)
          << (rounded ? "rounded " : "fp32 ") << n;
    }
  }
}

}  // namespace lazy::testing
