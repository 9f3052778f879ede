// The fused operators against float64 compositions of ATen operations, values and gradients. An error may be twice what the
// same composition has when its inputs and outputs are rounded to the type, plus one rounding.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "ops/attention.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"

namespace lazy::ops {

namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

double error(const at::Tensor& x, const at::Tensor& truth) {
  return ((x.to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

// Outputs, then gradients of their sum weighted by fixed random numbers.
Tensors run(const Function& function, const Tensors& inputs, at::ScalarType compute, at::ScalarType round) {
  Tensors leaves, cast;
  for (const at::Tensor& t : inputs) {
    leaves.push_back(t.detach().to(compute).set_requires_grad(true));
    cast.push_back(leaves.back());
  }
  Tensors result = function(cast);
  at::manual_seed(77);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& y : result) sum = sum + (y.to(at::kDouble) * at::randn(y.sizes(), at::kDouble)).sum();
  const Tensors gradients = torch::autograd::grad({sum}, leaves);
  result.insert(result.end(), gradients.begin(), gradients.end());
  for (at::Tensor& t : result) t = t.detach().to(round).to(at::kDouble);
  return result;
}

void expect_matches(const Function& ours, const Function& plain, const Tensors& shapes_of, at::ScalarType type) {
  Tensors inputs;
  for (const at::Tensor& t : shapes_of) inputs.push_back(t.to(type));
  const Tensors truth = run(plain, inputs, at::kDouble, at::kDouble), second = run(plain, inputs, at::kFloat, type);
  const Tensors found = run(ours, inputs, type, type);
  ASSERT_EQ(found.size(), truth.size());
  const double rounding = type == at::kFloat ? 0x1p-24 : 0x1p-8;
  for (size_t n = 0; n < found.size(); ++n) {
    EXPECT_LE(error(found[n], truth[n]), 2 * error(second[n], truth[n]) + 2 * rounding) << "result " << n << " in " << type;
  }
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& w) {
  return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * w;
}

class Fused : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Fused, RmsNorm) {
  at::manual_seed(1);
  for (int64_t dim : {1, 7, 64, 200}) {
    expect_matches([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], 1e-6)}; },
                   [](const Tensors& t) { return Tensors{plain_norm(t[0], t[1])}; },
                   {at::randn({3, 50, dim}), at::randn({dim})}, GetParam());
  }
}

TEST_P(Fused, AddRmsNorm) {
  at::manual_seed(2);
  // Sums that a rounding does not change, so that both references see the same sum.
  const at::Tensor x = at::randint(-64, 64, {3, 70, 48}).div(32.0), r = at::randint(-64, 64, {3, 70, 48}).div(32.0);
  expect_matches([](const Tensors& t) {
                   auto [y, sum] = add_rms_norm(t[0], t[1], t[2], 1e-6);
                   return Tensors{y, sum};
                 },
                 [](const Tensors& t) { return Tensors{plain_norm(t[0] + t[1], t[2]), t[0] + t[1]}; },
                 {x, r, at::randn({48})}, GetParam());
}

TEST_P(Fused, SwigluOfHalves) {
  at::manual_seed(3);
  for (int64_t dim : {1, 24, 171}) {
    auto halves = [](const at::Tensor& t) { return t.chunk(2, -1); };
    expect_matches([&](const Tensors& t) { return Tensors{swiglu(halves(t[0])[0], halves(t[0])[1])}; },
                   [&](const Tensors& t) { return Tensors{at::silu(halves(t[0])[0]) * halves(t[0])[1]}; },
                   {at::randn({5, 13, 2 * dim}) * 3}, GetParam());
  }
}

TEST_P(Fused, Rope) {
  at::manual_seed(4);
  const int64_t length = 9, dim = 40;
  for (const bool interleaved : {false, true}) {
    for (const int64_t rotary : {dim, int64_t{12}}) {
      for (const std::string type : {"none", "linear", "llama3", "yarn"}) {
        RopeOptions options;
        options.rotary_dim = rotary;
        options.interleaved = interleaved;
        options.scaling.type = type;
        options.scaling.factor = type == "none" ? 1 : 8;
        options.scaling.original_length = 64;
        if (interleaved) options.positions = at::tensor({0L, 3L, 1L, 1L, 70L, 2L, 5L, 8L, 400L});
        const int64_t offset = interleaved ? 0 : 5;
        const at::Tensor places = interleaved ? options.positions : at::arange(offset, offset + length, at::kLong);
        auto plain = [&](const Tensors& t) {
          const auto [frequencies, factor] = rope_frequencies(1.5e5, rotary, options.scaling);
          const at::Tensor angle = places.to(at::kDouble).unsqueeze(1) * at::tensor(frequencies, at::kDouble);
          const at::Tensor c = (factor * angle.cos()).to(t[0].scalar_type()).unsqueeze(1);
          const at::Tensor s = (factor * angle.sin()).to(t[0].scalar_type()).unsqueeze(1);
          const at::Tensor turned = t[0].slice(-1, 0, rotary), rest = t[0].slice(-1, rotary);
          const at::Tensor a = interleaved ? turned.slice(-1, 0, rotary, 2) : turned.slice(-1, 0, rotary / 2);
          const at::Tensor b = interleaved ? turned.slice(-1, 1, rotary, 2) : turned.slice(-1, rotary / 2);
          const at::Tensor first = a * c - b * s, second = b * c + a * s;
          const at::Tensor both = interleaved ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
          return Tensors{at::cat({both, rest}, -1)};
        };
        SCOPED_TRACE(type + (interleaved ? " interleaved " : " halves ") + std::to_string(rotary));
        expect_matches([&](const Tensors& t) { return Tensors{rope(t[0], 1.5e5, offset, options)}; }, plain,
                       {at::randn({2, length, 3, dim})}, GetParam());
      }
    }
  }
  // A view with other strides, and packed tokens, give the same.
  const at::Tensor x = at::randn({2, 3, length, dim}).transpose(1, 2);
  EXPECT_TRUE(at::equal(rope(x, 1e4), rope(x.contiguous(), 1e4)));
  EXPECT_TRUE(at::equal(rope(x[1], 1e4), rope(x, 1e4)[1]));
}

TEST_P(Fused, LinearCrossEntropy) {
  at::manual_seed(5);
  for (int64_t vocabulary : {3, 1001, 60000}) {   // the last needs several chunks
    at::Tensor labels = at::randint(vocabulary, {150}, at::kLong);
    labels[3] = -100;
    expect_matches([&](const Tensors& t) { return Tensors{std::get<0>(linear_cross_entropy(t[0], t[1], labels))}; },
                   [&](const Tensors& t) { return Tensors{at::cross_entropy_loss(at::mm(t[0], t[1].t()), labels)}; },
                   {at::randn({150, 12}), at::randn({vocabulary, 12})}, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Fused, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(FusedValues, LinearCrossEntropyReportsTokens) {
  const at::Tensor hidden = at::eye(3), weight = at::eye(3) * 4;
  const at::Tensor labels = at::tensor({0L, 2L, -100L});
  const auto [loss, log_prob, correct] = linear_cross_entropy(hidden, weight, labels);
  const at::Tensor expected = at::log_softmax(weight, -1);
  EXPECT_FLOAT_EQ(log_prob[0].item<float>(), expected[0][0].item<float>());
  EXPECT_FLOAT_EQ(log_prob[1].item<float>(), expected[1][2].item<float>());
  EXPECT_EQ(log_prob[2].item<float>(), 0);
  EXPECT_TRUE(correct[0].item<bool>());
  EXPECT_FALSE(correct[1].item<bool>());
  EXPECT_FALSE(correct[2].item<bool>());
  EXPECT_THROW(linear_cross_entropy(hidden, weight, at::tensor({0L, 3L, 1L})), c10::Error);
}

TEST(FusedValues, AutocastCastsLinearCrossEntropy) {
  const at::Tensor hidden = at::randn({7, 12}), weight = at::randn({50, 12}), labels = at::randint(50, {7}, at::kLong);
  const at::Tensor expected = std::get<0>(linear_cross_entropy(hidden.to(at::kBFloat16), weight.to(at::kBFloat16), labels));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor under = std::get<0>(linear_cross_entropy(hidden, weight, labels));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(at::equal(expected, under));
}

// Mixed inputs are what autocast meets: a projection's bf16 beside a cache's fp32.
TEST(FusedValues, AutocastCastsAttention) {
  const at::Tensor q = at::randn({1, 9, 2, 16}), k = at::randn({1, 9, 2, 16}), v = at::randn({1, 9, 2, 16}), tau = at::full({2}, -1.0);
  const auto low = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  const at::Tensor expected = std::get<0>(attention(low(q), low(k), low(v), {}, tau, {}));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor found = std::get<0>(attention(low(q), k, v, {}, tau, {}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(found, expected));
}

TEST(FusedValues, RopeMistakesAreNamed) {
  const at::Tensor x = at::randn({2, 5, 3, 16});
  auto refusal = [&](double base, int64_t offset, const std::function<void(RopeOptions&)>& change) {
    RopeOptions options;
    change(options);
    try {
      rope(x, base, offset, options);
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  const auto none = [](RopeOptions&) {};
  EXPECT_EQ(refusal(1e4, -1, none), "lazy::rope: expected offset of at least 0, received -1");
  EXPECT_EQ(refusal(0.5, 0, none), "lazy::rope: expected base above 1, received 0.5");
  EXPECT_EQ(refusal(1e4, 0, [](RopeOptions& o) { o.rotary_dim = 18; }), "lazy::rope: expected an even rotary_dim from 2 to head_dim, 16, received 18");
  EXPECT_EQ(refusal(1e4, 0, [](RopeOptions& o) { o.scaling.type = "ntk"; }),
            "lazy::rope: expected scaling to be \"none\", \"linear\", \"llama3\" or \"yarn\", received \"ntk\"");
  EXPECT_EQ(refusal(1e4, 0, [](RopeOptions& o) { o.scaling = {"yarn", 4}; }), "lazy::rope: expected original_length above 0 for scaling \"yarn\", received 0");
  EXPECT_EQ(refusal(1e4, 0, [](RopeOptions& o) { o.positions = at::tensor({0L, 1L}); }),
            "lazy::rope: expected positions of shape (length) or (batch, length), received [2] for x of [2, 5, 3, 16]");
  EXPECT_EQ(refusal(1e4, 0, [](RopeOptions& o) { o.positions = at::full({5}, -3L); }), "lazy::rope: expected positions of at least 0, received -3");
  EXPECT_EQ(refusal(1e4, int64_t{1} << 40, none).substr(0, 38), "lazy::rope: expected positions below 1");
}

TEST(FusedValues, SecondDerivativesAreRefused) {
  const at::Tensor labels = at::tensor({1L, 0L});
  const std::vector<std::pair<const char*, Function>> operators{
      {"rms_norm", [](const Tensors& t) { return Tensors{rms_norm(t[0], t[1][0], 1e-6)}; }},
      {"swiglu", [](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; }},
      {"linear_cross_entropy", [&](const Tensors& t) { return Tensors{std::get<0>(linear_cross_entropy(t[0], t[1], labels))}; }}};
  for (const auto& [name, function] : operators) {
    SCOPED_TRACE(name);
    const Tensors leaves{at::randn({2, 8}).set_requires_grad(true), at::randn({2, 8}).set_requires_grad(true)};
    const Tensors first = torch::autograd::grad({function(leaves)[0].square().sum()}, leaves, {}, {}, /*create_graph=*/true);
    try {
      torch::autograd::grad({first[0].sum()}, leaves, {}, {}, false, /*allow_unused=*/true);
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

// An operator that serves the CPU answers for CUDA tensors too, be it by an error of ours.
TEST(FusedValues, EveryOperatorAnswersForCuda) {
  int seen = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("lazy::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    ++seen;
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << name.name;
  }
  EXPECT_GT(seen, 8);
}

}  // namespace

}  // namespace lazy::ops
