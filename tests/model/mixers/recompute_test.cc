// Results that are freed after the forward pass and computed again before the backward pass.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/blocks/activation_checkpoint.h"

namespace lazy {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  at::Tensor x = at::randn({3, 5}, at::kDouble), w = at::randn({5}, at::kDouble);
  Tensors inputs() const { return {x.detach().requires_grad_(), at::Tensor(), w.detach().requires_grad_()}; }
  static Tensors make(const Tensors& t) {
    const at::Tensor wide = at::silu(t[0]) * t[2];
    return {wide, at::exp(wide)};
  }
  static Tensors body(const Tensors& made) {
    return {(made[0] * made[1]).sum(1), at::Tensor(), (made[1] * made[1]).narrow(1, 1, 2)};
  }
};

Tensors gradients(const Tensors& outputs, const Tensors& inputs, bool only_last) {
  const at::Tensor loss = only_last ? outputs[2].square().sum() : outputs[0].square().sum() + outputs[2].sum();
  Tensors all;
  for (int pass = 0; pass < 2; ++pass) {  // the graph serves twice
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
    for (const at::Tensor& input : {inputs[0], inputs[2]}) all.push_back(input.grad().clone());
  }
  return all;
}

TEST(RecomputeBeforeBackward, GivesTheSameGradientsFromFreedResults) {
  const Case c;
  for (const bool only_last : {false, true}) {
    const Tensors plain_in = c.inputs(), plain = Case::body(Case::make(plain_in));
    const Tensors expected = gradients(plain, plain_in, only_last);
    const Tensors inputs = c.inputs();
    int calls = 0;
    Tensors made = Case::make(inputs);
    const std::vector<c10::Storage> storages{made[0].storage(), made[1].storage()};
    const Tensors outputs = recompute_before_backward(
        made, inputs, [&calls](const Tensors& t) { return ++calls, Case::make(t); }, Case::body(made));
    made.clear();
    EXPECT_FALSE(outputs[1].defined());
    for (const c10::Storage& storage : storages) EXPECT_EQ(storage.data(), nullptr);
    EXPECT_TRUE(at::equal(outputs[0], plain[0]));
    const Tensors found = gradients(outputs, inputs, only_last);
    EXPECT_EQ(calls, 2);
    for (size_t n = 0; n < expected.size(); ++n) EXPECT_TRUE(at::equal(found[n], expected[n])) << n << only_last;
  }
}

TEST(RecomputeBeforeBackward, KeepsWhatIsReadElsewhereAndWhatNeedsNoGradient) {
  const Case c;
  const Tensors inputs = c.inputs();
  const auto identity = [](const Tensors& t) { return Tensors{t[0].view({5, 3}), at::exp(t[0])}; };
  const Tensors made = identity(inputs);
  const Tensors outputs = recompute_before_backward(made, inputs, identity, {made[1].narrow(0, 0, 1), made[0] * 2});
  EXPECT_NE(inputs[0].storage().data(), nullptr) << "a view of an input";
  EXPECT_NE(outputs[0].storage().data(), nullptr) << "a view of a result";
  const at::NoGradGuard no_grad;
  const Tensors quiet = identity(inputs);
  recompute_before_backward(quiet, inputs, identity, {quiet[1] * 2});
  EXPECT_NE(quiet[1].storage().data(), nullptr);
}

}  // namespace
}  // namespace lazy
