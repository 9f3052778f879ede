// Tests of recomputation in the backward pass: recomputing all activations, recomputing the activations that do not fit
// the memory budget, and freeing results.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/blocks/activation_checkpoint.h"
#include "model/mixers/counted_budget.h"

namespace lazy {
namespace {

using Tensors = std::vector<at::Tensor>;

struct RecomputeCase {
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
  for (int pass = 0; pass < 2; ++pass) {  // the backward pass runs twice on the same graph
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
    for (const at::Tensor& input : {inputs[0], inputs[2]}) all.push_back(input.grad().clone());
  }
  return all;
}

TEST(RecomputeBeforeBackward, FreedResults_GiveSameGradients) {
  const RecomputeCase c;
  for (const bool only_last : {false, true}) {
    const Tensors plain_in = c.inputs(), plain = RecomputeCase::body(RecomputeCase::make(plain_in));
    const Tensors expected = gradients(plain, plain_in, only_last);
    const Tensors inputs = c.inputs();
    int calls = 0;
    Tensors made = RecomputeCase::make(inputs);
    const std::vector<c10::Storage> storages{made[0].storage(), made[1].storage()};
    const Tensors outputs = recompute_before_backward(
        made, inputs, [&calls](const Tensors& t) { return ++calls, RecomputeCase::make(t); },
        RecomputeCase::body(made));
    made.clear();
    EXPECT_FALSE(outputs[1].defined());
    for (const c10::Storage& storage : storages) EXPECT_EQ(storage.data(), nullptr);
    EXPECT_TRUE(at::equal(outputs[0], plain[0]));
    const Tensors found = gradients(outputs, inputs, only_last);
    EXPECT_EQ(calls, 2);
    for (size_t n = 0; n < expected.size(); ++n) EXPECT_TRUE(at::equal(found[n], expected[n])) << n << only_last;
  }
}

TEST(RecomputeBeforeBackward, SharedStorage_IsNotFreed) {
  const RecomputeCase c;
  const Tensors inputs = c.inputs();
  const auto identity = [](const Tensors& t) { return Tensors{t[0].view({5, 3}), at::exp(t[0])}; };
  const Tensors made = identity(inputs);
  const Tensors outputs = recompute_before_backward(made, inputs, identity, {made[1].narrow(0, 0, 1), made[0] * 2});
  EXPECT_NE(inputs[0].storage().data(), nullptr) << "a view of an input must not be freed";
  EXPECT_NE(outputs[0].storage().data(), nullptr) << "a result must not be freed if an output is a view of it";
  const at::NoGradGuard no_grad;
  const Tensors quiet = identity(inputs);
  recompute_before_backward(quiet, inputs, identity, {quiet[1] * 2});
  EXPECT_NE(quiet[1].storage().data(), nullptr);
}

// Counts the calls of three consecutive functions. Each function is called once in the forward pass, and again in the
// backward pass if it is recomputed.
class ActivationBudgets : public ::testing::Test {
 protected:
  int64_t functions_run() {
    int64_t runs = 0;
    at::Tensor x = at::full({2}, 0.5, at::kDouble).requires_grad_();
    const at::Tensor leaf = x;
    {
      const ActivationBudget::ForwardPass pass(counted.budget);
      for (int n = 0; n < 3; ++n) {
        x = keep_or_checkpoint({x, at::Tensor()},
                               [&runs](const Tensors& t) { return ++runs, Tensors{t[0].sin() * t[0]}; })[0];
      }
    }
    x.sum().backward();
    EXPECT_EQ(leaf.grad().numel(), 2);
    return runs;
  }
  int64_t functions_run_in_step() {
    const int64_t runs = functions_run();
    counted.budget.end_step();
    return runs;
  }
  testing::CountedBudget counted;
};

TEST_F(ActivationBudgets, FirstStep_RecomputesAndLaterStepsKeepWhatFits) {
  counted.memory = {.reserved = 70, .free = 30, .total = 100};
  EXPECT_EQ(functions_run(), 6) << "the budget is 0 before the first optimizer step";
  EXPECT_EQ(functions_run_in_step(), 6);
  counted.memory.free = 10;  // 8 bytes (8 % of the memory) stay free, so the budget is 2 bytes
  EXPECT_EQ(functions_run(), 4);
  // The allocator now caches the memory of the activations that the step kept. This memory can be used again.
  counted.memory = {.reserved = 72, .free = 8, .total = 100};
  EXPECT_EQ(functions_run_in_step(), 4);
  EXPECT_EQ(functions_run_in_step(), 4);
  counted.memory.free = 7;  // simulates that another process has allocated memory
  EXPECT_EQ(functions_run_in_step(), 5);
  counted.memory.free = 9;
  EXPECT_EQ(functions_run_in_step(), 3);
}

TEST_F(ActivationBudgets, Budget_ShrinksAfterMemoryRanOut) {
  EXPECT_EQ(functions_run_in_step(), 6);
  counted.memory.free = 3;
  // The allocator has retried an allocation since the last step, for example during a validation.
  counted.memory.retries = 4;
  EXPECT_EQ(functions_run(), 3);
  counted.memory.retries = 5;
  EXPECT_EQ(functions_run(), 4) << "80 % of the memory";
  counted.memory.retries = 9;
  counted.budget.end_step();
  EXPECT_EQ(functions_run(), 5) << "64 %";
}

TEST_F(ActivationBudgets, Budget_ReservesLargestFunction) {
  EXPECT_EQ(functions_run_in_step(), 6);
  counted.memory.free = 10;
  counted.budget.note_cost(9);
  counted.budget.note_cost(2);
  EXPECT_EQ(functions_run(), 5) << "the first function uses 9 of the 10 bytes";
}

TEST_F(ActivationBudgets, Budget_AppliesOnlyToItsForwardPass) {
  EXPECT_EQ(ActivationBudget::current(), nullptr);
  EXPECT_EQ(functions_run_in_step(), 6);
  counted.memory.free = 100;
  int64_t runs = 0;
  const auto outer = [&runs](const Tensors& in) {
    return keep_or_checkpoint(in, [&runs](const Tensors& t) { return ++runs, Tensors{t[0].exp()}; });
  };
  {
    const ActivationBudget::ForwardPass pass(counted.budget);
    EXPECT_EQ(ActivationBudget::current(), &counted.budget);
    checkpoint_activations({at::ones({2}).requires_grad_()}, outer)[0].sum().backward();
  }
  EXPECT_EQ(runs, 2) << "the function runs once in the forward pass and once for both backward passes";
  ActivationBudget none(c10::Device(c10::kCPU));
  const ActivationBudget::ForwardPass pass(none);
  none.end_step();
  EXPECT_EQ(ActivationBudget::current(), nullptr);
}

}  // namespace
}  // namespace lazy
