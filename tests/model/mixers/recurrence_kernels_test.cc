// Tests of the recurrence kernels on tensor cores against the loops that define the recurrences: outputs, states and
// all gradients. They cover lengths around the chunk size of 64, many sizes of keys and values, groups of heads, packed
// documents and initial states. The kernels run on a GPU or in the CPU emulator.
//
// The limit of the error: the distance of the kernels from float64 may be at most twice the distance of a loop in fp32
// whose inputs and results are rounded to bf16, plus one rounding.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "model/mixers/recurrence/recurrence.h"
#include "model/mixers/recurrence_cases.h"
#include "ops/linear_recurrence.h"

namespace lazy {
namespace {

using namespace lazy::testing;

class RecurrenceKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    const at::Tensor x = here(at::zeros({1, 1, 1, 64}, at::kBFloat16));
    if (!ops::serves_linear_recurrence(x, x, false)) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  }
};

// Fills the allocator's cache with NaN, so that memory that the kernels do not write is NaN in every dtype.
void poison() {
  if (!ops::test::test_device().is_cuda()) return;
  const auto bytes = at::TensorOptions(at::kChar).device(ops::test::test_device());
  std::vector<at::Tensor> held;
  for (const int64_t size : {1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26}) {
    for (int n = 0; n < 12; ++n) held.push_back(at::full({size}, -1, bytes));
  }
}

struct Results {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

// Returns the outputs, the last state, and the gradients of a loss. The loss is the sum of all outputs and of the last
// state, weighted by fixed random numbers.
Results results(const Case& c, Inputs in, bool kernels) {
  const std::vector<at::Tensor> wanted = leaves(in);
  if (kernels) {
    EXPECT_TRUE(recurrence::on_tensor_cores(in, c.delta)) << c.name;
    poison();
  }
  const Outputs y = kernels ? c.chunks(in, 64) : c.loop(in);
  const at::Tensor weights = randn(y.out.sizes(), 29).to(at::kBFloat16).to(y.out.scalar_type());
  at::Tensor loss = (y.out * weights).sum();
  if (y.state.defined()) loss = loss + (y.state * randn(y.state.sizes(), 31, y.state.scalar_type())).sum();
  if (kernels) poison();
  Results r{{"out"}, {y.out.detach()}};
  if (y.state.defined()) r.names.push_back("state"), r.tensors.push_back(y.state.detach());
  for (const at::Tensor& g : torch::autograd::grad({loss}, wanted)) {
    r.names.push_back("result " + std::to_string(r.names.size()));
    r.tensors.push_back(g);
  }
  return r;
}

// Computes one token without gradients, either with the single-token kernel or with the loop.
Results token_results(const Case& c, Inputs in, bool kernels) {
  const at::NoGradGuard guard;
  if (kernels) poison();
  const Outputs y = !kernels ? c.loop(in) : c.delta ? recurrence::delta_rule(in, 64) : recurrence::decay(in, 64);
  return {{"out", "state"}, {y.out, y.state}};
}

void expect_as_good_as_plain(const Case& c, const Inputs& exact,
                             Results (*results)(const Case&, Inputs, bool) = lazy::results) {
  Inputs ours = exact, plain = exact;
  for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) {
    ours.*t = (exact.*t).to(at::kBFloat16);
    plain.*t = (ours.*t).to(at::kFloat);
  }
  for (at::Tensor Inputs::*t : {&Inputs::log_decay, &Inputs::beta, &Inputs::skip, &Inputs::initial_state}) {
    if ((exact.*t).defined()) ours.*t = plain.*t = (exact.*t).to(at::kFloat);
  }
  const Results found = results(c, ours, true), second = results(c, plain, false), truth = results(c, exact, false);
  ASSERT_EQ(found.names, truth.names);
  for (size_t n = 0; n < truth.tensors.size(); ++n) {
    const at::Tensor& exactly = truth.tensors[n];
    const auto far = [&](const at::Tensor& x) { return (x.to(at::kDouble) - exactly).norm().item<double>(); };
    // The tolerance is larger for tensors with few elements, because the reference with rounded inputs may be exact by
    // chance. The absolute term covers the gradient of the first token's decay, which is zero except for rounding
    // errors.
    const double rounding = (exactly.numel() < 8 ? 0x1p-6 : 0x1p-8) * exactly.norm().item<double>() +
                            2e-4 * std::sqrt(static_cast<double>(exactly.numel()));
    const double limit = 2 * far(second.tensors[n].to(at::kBFloat16)) + rounding;
    EXPECT_LE(far(found.tensors[n]), limit) << c.name << ": " << truth.names[n] << ", length " << c.length << ", keys "
                                            << c.key_dim << ", values " << c.value_dim;
  }
}

TEST_F(RecurrenceKernels, LengthsAroundChunkSize_MatchLoop) {
  for (const int64_t length : {1, 5, 63, 64, 65, 128, 200}) {
    for (const bool started : {false, true}) {
      for (Case c : cases(length)) {
        c.key_dim = 64, c.value_dim = 64;
        Inputs in = c.inputs(7);
        if (started) in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 11);
        expect_as_good_as_plain(c, in);
      }
    }
  }
}

TEST_F(RecurrenceKernels, KeyAndValueWidths_MatchLoop) {
  for (const auto& [keys, values] : {std::pair{128, 64}, std::pair{128, 128}, std::pair{256, 64}, std::pair{256, 512},
                                     std::pair{40, 24}, std::pair{96, 200}, std::pair{16, 1}}) {
    for (Case c : cases(150, 1)) {
      c.key_dim = keys, c.value_dim = values;
      Inputs in = c.inputs(13);
      in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 11);
      expect_as_good_as_plain(c, in);
    }
  }
}

TEST_F(RecurrenceKernels, SingleToken_MatchesLoop) {
  for (const auto& [keys, values] : {std::pair{64, 64}, std::pair{256, 512}, std::pair{512, 64}, std::pair{24, 20},
                                     std::pair{5, 3}, std::pair{600, 8}}) {
    for (const bool started : {false, true}) {
      for (Case c : cases(1)) {
        c.key_dim = keys, c.value_dim = values;
        Inputs in = c.inputs(23);
        if (started) in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 11);
        expect_as_good_as_plain(c, in, token_results);
      }
    }
  }
}

TEST_F(RecurrenceKernels, PackedDocuments_AreIndependent) {
  const std::vector<int64_t> starts = {0, 3, 5, 64, 64, 100, 128, 150, 300};
  for (Case c : cases(300, 1)) {
    c.key_dim = 64, c.value_dim = 128;
    Inputs in = c.inputs(17);
    in.cu_seqlens = here(at::tensor(starts, at::kLong).to(at::kInt));
    expect_as_good_as_plain(c, in);
  }
}

// Tests queries, keys and values that are slices of wider tensors, at unaligned addresses and with other strides.
TEST_F(RecurrenceKernels, StridedViews_AreRead) {
  for (Case c : cases(100)) {
    c.key_dim = 64, c.value_dim = 64;
    Inputs in = c.inputs(19);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) in.*t = (in.*t).to(at::kBFloat16);
    const Outputs whole = c.chunks(in, 64);
    const int64_t width = in.q.size(2) * 64, values = in.v.size(2) * 64;
    for (const int64_t gap : {8, 3}) {
      const at::Tensor between = here(at::full({c.batch, c.length, gap}, NAN, at::kBFloat16));
      const at::Tensor all = at::cat({between, in.q.flatten(2), in.k.flatten(2), in.v.flatten(2)}, 2);
      Inputs views = in;
      views.q = all.narrow(2, gap, width).unflatten(2, {-1, 64});
      views.k = all.narrow(2, gap + width, width).unflatten(2, {-1, 64});
      views.v = all.narrow(2, gap + 2 * width, values).unflatten(2, {-1, 64});
      const Outputs y = c.chunks(views, 64);
      EXPECT_TRUE(y.out.equal(whole.out) && y.state.equal(whole.state)) << c.name << ", gap " << gap;
    }
    Inputs turned = in;
    turned.v = in.v.transpose(1, 3).contiguous().transpose(1, 3);
    EXPECT_TRUE(c.chunks(turned, 64).out.equal(whole.out)) << c.name;
  }
}

TEST_F(RecurrenceKernels, Results_AreBitwiseReproducible) {
  for (Case c : cases(ops::test::test_device().is_cuda() ? 700 : 200)) {
    c.key_dim = 128, c.value_dim = 128;
    Inputs in = c.inputs(23);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) in.*t = (in.*t).to(at::kBFloat16);
    const Results first = results(c, in, true), again = results(c, in, true);
    for (size_t n = 0; n < first.tensors.size(); ++n) {
      EXPECT_TRUE(first.tensors[n].equal(again.tensors[n])) << c.name << ": " << first.names[n];
    }
  }
}

// Tests a batch that is so large that it needs several launches. Its last sequences must equal the same sequences
// computed in a separate call.
TEST_F(RecurrenceKernels, LargeBatch_MatchesSeparateSequences) {
  const int64_t batch = ops::test::test_device().is_cuda() ? 70000 : 6, few = 3;
  for (const int64_t length : {1, 3}) {
    for (Case c : cases(length, batch)) {
      c.key_dim = 64, c.value_dim = 64;
      Inputs in = c.inputs(37);
      for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) in.*t = (in.*t).to(at::kBFloat16);
      Inputs last = in;
      for (at::Tensor Inputs::*t : {&Inputs::log_decay, &Inputs::beta, &Inputs::skip}) {
        if ((in.*t).defined()) last.*t = in.*t = (in.*t).to(at::kFloat);
      }
      for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::log_decay, &Inputs::beta}) {
        if ((in.*t).defined() && (in.*t).size(0) == batch) last.*t = (in.*t).narrow(0, batch - few, few);
      }
      const auto outputs = [&](Inputs x) {
        const std::vector<at::Tensor> wanted = leaves(x);
        poison();
        const Outputs y =
            length == 1 ? (c.delta ? recurrence::delta_rule(x, 64) : recurrence::decay(x, 64)) : c.chunks(x, 64);
        std::vector<at::Tensor> all{y.out.detach(), y.state.detach()};
        const at::Tensor loss = (y.out.to(at::kFloat) * 0.5).square().sum() + y.state.sum();
        for (const at::Tensor& g : torch::autograd::grad({loss}, wanted)) all.push_back(g);
        return all;
      };
      const std::vector<at::Tensor> whole = outputs(in), alone = outputs(last);
      for (size_t n = 0; n < whole.size(); ++n) {
        if (whole[n].size(0) != batch) continue;  // skip the gradients of parameters, which have no batch dimension
        EXPECT_TRUE(whole[n].narrow(0, batch - few, few).equal(alone[n]))
            << c.name << ", length " << length << ": " << n;
      }
      const at::NoGradGuard guard;  // a single token without gradients uses a different kernel
      const auto step = [&](const Inputs& x) {
        return c.delta ? recurrence::delta_rule(x, 64) : recurrence::decay(x, 64);
      };
      EXPECT_TRUE(step(in).out.narrow(0, batch - few, few).equal(step(last).out)) << c.name << ", length " << length;
    }
  }
}

TEST_F(RecurrenceKernels, CompleteDecay_StaysFinite) {
  for (const bool delta : {false, true}) {
    Case c{
        .name = "forgetting", .delta = delta, .length = 1000, .groups = 2, .heads = 2, .key_dim = 64, .value_dim = 64};
    Inputs in = c.inputs(61);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) in.*t = (in.*t).to(at::kBFloat16);
    in.log_decay = at::full({1, c.length, 2}, -200.0, in.v.options().dtype(at::kFloat));
    in.log_decay.select(2, 1).slice(1, 0, c.length, 2).fill_(-INFINITY);
    const Results r = results(c, in, true);
    for (size_t n = 0; n < r.tensors.size(); ++n) EXPECT_TRUE(r.tensors[n].isfinite().all().item<bool>()) << r.names[n];
  }
}

TEST_F(RecurrenceKernels, NaN_Propagates) {
  for (Case c : cases(70)) {
    c.key_dim = 64, c.value_dim = 64;
    Inputs in = c.inputs(67);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v}) in.*t = (in.*t).to(at::kBFloat16);
    in.q[0][66][0][5] = NAN;
    const at::Tensor nan = c.chunks(in, 64).out.isnan().any(-1).any(-1).to(at::kCPU);  // shape (B, L)
    EXPECT_TRUE(nan.eq(at::arange(2).eq(0).unsqueeze(1) & at::arange(70).eq(66)).all().item<bool>()) << c.name;
  }
}

}  // namespace
}  // namespace lazy
