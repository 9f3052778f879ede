// Tests of the operator layer: schema, shapes without data, errors, autograd. tests/attention tests the numerical
// results.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/attention.h"
#include "ops/attention_arguments.h"
#include "ops/device.h"
#include "ops/rope.h"
#include "ops/torch_error_of.h"

namespace lazy::ops {

namespace {

struct Inputs {
  at::Tensor q, k, v, bias, tau;
};

Inputs inputs(at::ScalarType type, int64_t length = 9) {
  at::manual_seed(3);
  const auto parameter = type == at::kDouble ? at::kDouble : at::kFloat;
  auto leaf = [](const at::Tensor& t) { return t.to(test::test_device()).set_requires_grad(true); };
  return {leaf(at::randn({2, length, 4, 16}).to(type)), leaf(at::randn({2, length, 2, 16}).to(type)),
          leaf(at::randn({2, length, 2, 8}).to(type)), leaf(at::randn({4, 5}).to(parameter)),
          leaf(at::full({4}, -0.9).to(parameter))};
}

TEST(AttentionOperator, Outputs_HaveExpectedShapesAndTypes) {
  const Inputs in = inputs(at::kBFloat16);
  AttentionOptions options;
  options.return_stats = true;
  const auto [out, lse, stats] = attention(in.q, in.k, in.v, in.bias, in.tau, options);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 9, 4, 8}));
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(lse.sizes(), at::IntArrayRef({2, 4, 9}));
  EXPECT_EQ(lse.scalar_type(), at::kFloat);
  EXPECT_EQ(stats.sizes(), at::IntArrayRef({3, 2, 4, 9}));
  EXPECT_FALSE(lse.requires_grad());
  options.return_score_stats = true;
  const at::Tensor all = std::get<2>(attention(in.q, in.k, in.v, in.bias, in.tau, options));
  EXPECT_EQ(all.sizes(), at::IntArrayRef({5, 2, 4, 9}));
  EXPECT_TRUE(at::equal(all.narrow(0, 0, 3), stats));
  options.return_score_stats = false;
  options.return_stats = false;
  EXPECT_EQ(std::get<2>(attention(in.q, in.k, in.v, in.bias, in.tau, options)).numel(), 0);
}

TEST(AttentionOperator, MetaKernel_ReturnsSameShapes) {
  const Inputs in = inputs(at::kFloat);
  auto meta = [](const at::Tensor& t) { return t.detach().to(at::kMeta); };
  AttentionOptions options;
  options.return_score_stats = true;
  const auto real = attention(in.q, in.k, in.v, in.bias, in.tau, options);
  const auto shape = attention(meta(in.q), meta(in.k), meta(in.v), meta(in.bias), meta(in.tau), options);
  EXPECT_EQ(std::get<0>(real).sizes(), std::get<0>(shape).sizes());
  EXPECT_EQ(std::get<1>(real).sizes(), std::get<1>(shape).sizes());
  EXPECT_EQ(std::get<2>(real).sizes(), std::get<2>(shape).sizes());
  EXPECT_EQ(std::get<0>(real).strides(), std::get<0>(shape).strides());
}

// Compares every gradient of the fp32 kernels with the gradient of the float64 definition. Both run through the same
// autograd code.
TEST(AttentionOperator, Gradients_MatchFloat64Reference) {
  const Inputs in = inputs(at::kFloat), exact = [&] {
    Inputs e = in;
    for (at::Tensor* t : {&e.q, &e.k, &e.v, &e.bias, &e.tau})
      *t = t->detach().to(at::kCPU, at::kDouble).set_requires_grad(true);
    return e;
  }();
  auto gradients = [](const Inputs& x, bool with_bias) {
    std::vector<at::Tensor> list{x.q, x.k, x.v, x.tau};
    if (with_bias) list.push_back(x.bias);
    const at::Tensor out = std::get<0>(attention(x.q, x.k, x.v, with_bias ? x.bias : at::Tensor(), x.tau, {}));
    return torch::autograd::grad({out.to(at::kDouble).square().sum()}, list);
  };
  for (bool with_bias : {true, false}) {
    const auto found = gradients(in, with_bias), expected = gradients(exact, with_bias);
    for (size_t n = 0; n < found.size(); ++n) {
      ASSERT_EQ(found[n].sizes(), expected[n].sizes());
      // The tolerance covers fp32 sums of at most a few hundred terms.
      EXPECT_LT((found[n].cpu() - expected[n]).norm().item<double>(), 0x1p-19 * expected[n].norm().item<double>()) << n;
    }
  }
}

// Both rotated_attention and a separate RoPE followed by attention are compared with separate operators in fp32. The
// error of rotated_attention must not be larger. q and k are either slices of one tensor or separate tensors. The
// operator must return the gradients of q, k and v as slices of one tensor.
TEST(AttentionOperator, RotatedAttention_MatchesSeparateRope) {
  const auto rotations = [](int64_t head_dim) {
    RopeOptions half, interleaved;
    half.rotary_dim = head_dim / 2;
    half.scaling = {.type = "longrope", .factor = 4, .original_length = 64};
    for (int64_t n = 0; n < head_dim / 4; ++n) half.scaling.pair_factors.push_back(1 + 0.5 * static_cast<double>(n));
    interleaved.interleaved = true;
    return std::vector<RopeOptions>{{}, half, interleaved};
  };
  struct Case {
    at::ScalarType type;
    int64_t head_dim, length;
  };
  for (const auto& [type, head_dim, length] : {Case{at::kFloat, 16, 9},
                                               {at::kBFloat16, 16, 9},
                                               {at::kBFloat16, 64, 330},
                                               {at::kBFloat16, 96, 300},
                                               {at::kBFloat16, 128, 300}}) {
    for (const RopeOptions& rotation : rotations(head_dim)) {
      at::manual_seed(5);
      const at::Tensor both = at::randn({2, length, 6, head_dim}).to(type),
                       v = at::randn({2, length, 2, head_dim}).to(type),
                       d_out = at::randn({2, length, 4, head_dim}).to(type);
      const at::Tensor bias = at::randn({4, 32}), tau = at::full({4}, -0.9);
      const auto results = [&](bool inside, bool exact, bool one_tensor) {
        const auto leaf = [&](const at::Tensor& t) {
          const at::Tensor moved = exact ? t.to(at::kFloat) : t.to(test::test_device());
          return moved.detach().clone().set_requires_grad(true);
        };
        const at::Tensor qk = leaf(both);
        std::vector<at::Tensor> in = qk.split_with_sizes({4, 2}, 2);
        if (!one_tensor) in = {leaf(in[0]), leaf(in[1])};
        in.insert(in.end(), {leaf(v), leaf(bias), leaf(tau)});
        const at::Tensor out =
            inside ? std::get<0>(rotated_attention(in[0], in[1], in[2], in[3], in[4], 1e4, rotation, {}))
                   : std::get<0>(attention(rope(in[0], 1e4, 0, rotation), rope(in[1], 1e4, 0, rotation), in[2], in[3],
                                           in[4], {}));
        auto all = torch::autograd::grad({out}, in, {d_out.to(out.options().requires_grad(false))});
        all.push_back(out.detach());
        return all;
      };
      const auto exact = results(false, true, false), apart = results(false, false, false);
      for (const bool one_tensor : {false, true}) {
        const auto found = results(true, false, one_tensor);
        for (size_t n = 0; n < found.size(); ++n) {
          const auto error = [&](const at::Tensor& x) {
            return ((x.to(at::kCPU, at::kFloat) - exact[n]).norm() / exact[n].norm()).item<double>();
          };
          EXPECT_LE(error(found[n]), 1.2 * error(apart[n]) + 1e-6)
              << n << " of head size " << head_dim << ' ' << rotation.rotary_dim << rotation.interleaved << one_tensor;
        }
        EXPECT_TRUE(found[0].is_alias_of(found[1]) && found[1].is_alias_of(found[2]));
      }
    }
  }
}

TEST(AttentionOperator, Backward_ComputesOnlyRequestedGradients) {
  Inputs in = inputs(at::kFloat);
  in.k.set_requires_grad(false);
  in.bias.set_requires_grad(false);
  const at::Tensor out = std::get<0>(attention(in.q, in.k, in.v, in.bias, in.tau, {}));
  out.sum().backward();
  EXPECT_TRUE(in.q.grad().defined());
  EXPECT_TRUE(in.v.grad().defined());
  EXPECT_TRUE(in.tau.grad().defined());
  EXPECT_FALSE(in.k.grad().defined());
  EXPECT_FALSE(in.bias.grad().defined());
}

TEST(AttentionOperator, Errors_NameExpectedAndReceivedValues) {
  const Inputs in = inputs(at::kFloat);
  auto call = [&](const Inputs& x, AttentionOptions options = {}) {
    return test::torch_error_of([&] { attention(x.q, x.k, x.v, x.bias, x.tau, options); });
  };
  Inputs bad = in;
  bad.tau = at::Tensor();
  EXPECT_THAT(call(bad), Names({"lazy::attention", "tau", "elastic", "None"}));
  bad = in;
  bad.k = in.k.to(at::kBFloat16);
  EXPECT_THAT(call(bad), Names({"lazy::attention", "k", "Float", "q", "BFloat16"}));
  bad = in;
  bad.q = in.q.select(0, 0);
  EXPECT_THAT(call(bad),
              Names({"lazy::attention", "q", "batch", "length", "heads", "head_dim", std::string("[9, 4, 16]")}));
  bad = in;
  bad.bias = in.bias.slice(0, 0, 3);
  EXPECT_THAT(call(bad), Names({"lazy::attention", "distance_bias", 4, "window", std::string("[3, 5]")}));
  bad = in;
  bad.k = at::randn({2, 9, 3, 16}, in.k.options());
  bad.v = at::randn({2, 9, 3, 8}, in.k.options());
  EXPECT_THAT(call(bad), Names({"lazy::attention", "q", "k", "heads", 4, 3}));
  AttentionOptions options;
  options.window = 0;
  EXPECT_THAT(call(in, options), Names({"lazy::attention", "window", -1, 1, 0}));
  options = {};
  options.normalizer = "soft";
  EXPECT_THAT(call(in, options), Names({"lazy::attention", "normalizer", "elastic", "soft"}));
  options = {};
  for (const double scale : {double{NAN}, double{INFINITY}, -1e300}) {
    options.scale = scale;
    EXPECT_THAT(call(in, options), Names({"lazy::attention", "scale", "float32"}));
  }
  options = {};
  for (const double softcap : {double{NAN}, double{INFINITY}, -1.0, 1e-300, 1e300}) {
    options.softcap = softcap;
    EXPECT_THAT(call(in, options), Names({"lazy::attention", "softcap"}));
  }
  options = {};
  options.normalizer = "sigmoid";
  options.sigmoid_bias = NAN;
  bad = in;
  bad.tau = at::Tensor();
  EXPECT_THAT(call(bad, options), Names({"lazy::attention", "sigmoid_bias", "float32", "nan"}));
  options = {};
  options.offset = "none";
  EXPECT_THAT(call(in, options), Names({"lazy::attention", "offset", "per_visible", "constant", "none"}));
}

TEST(AttentionOperator, HugeWindow_MatchesNoWindow) {
  const Inputs in = inputs(at::kFloat);
  AttentionOptions options;
  for (const bool causal : {true, false}) {
    options.causal = causal;
    options.window = -1;
    const at::Tensor none = std::get<0>(attention(in.q, in.k, in.v, in.bias, in.tau, options));
    for (const int64_t window : {int64_t{1} << 32, INT64_MAX - 3, INT64_MAX}) {
      options.window = window;
      const at::Tensor out = std::get<0>(attention(in.q, in.k, in.v, in.bias, in.tau, options));
      EXPECT_TRUE(at::equal(out, none)) << window;
      out.sum().backward();
    }
  }
}

// attention_backward is a separate operator, so it must check all of its arguments.
TEST(AttentionOperator, Backward_ChecksForwardResults) {
  const Inputs in = inputs(at::kFloat);
  const auto [out, lse, stats] = attention(in.q, in.k, in.v, in.bias, in.tau, {});
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::attention_backward", "")
                             .typed<BackwardOutputs(LAZY_ATTENTION_BACKWARD_PARAMETERS)>();
  OptionalTensor alive_sum;
  auto call = [&](const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse) {
    return test::torch_error_of([&] {
      op.call(d_out, out, lse, in.q, in.k, in.v, in.bias, in.tau, {}, {}, "elastic", "per_visible", {}, {}, {}, true,
              -1, {}, {}, false, {true, true, true, true, true, false, false}, alive_sum);
    });
  };
  EXPECT_EQ(call(out, out, lse), "");
  alive_sum = out.narrow(1, 0, 3);
  EXPECT_THAT(call(out, out, lse), Names({"lazy::attention_backward", "alive_sum", std::string("[2, 9, 4, 8]"),
                                          std::string("[2, 3, 4, 8]")}));
  for (const at::Tensor& none : {at::Tensor(), at::empty({0}, out.options())}) {
    alive_sum = none.defined() ? OptionalTensor(none) : OptionalTensor();
    EXPECT_EQ(call(out, out, lse), "");
  }
  EXPECT_THAT(call(out.narrow(1, 0, 0), out, lse),
              Names({"lazy::attention_backward", "d_out", std::string("[2, 9, 4, 8]"), "Float",
                     test::test_device().str(), std::string("[2, 0, 4, 8]")}));
  EXPECT_THAT(call(out.select(0, 0), out, lse), Names({"lazy::attention_backward", "d_out", std::string("[9, 4, 8]")}));
  EXPECT_THAT(call(out, out.to(at::kHalf), lse), Names({"lazy::attention_backward", "out", "Float", "Half"}));
  EXPECT_THAT(call(out, out, lse.to(at::kDouble)),
              Names({"lazy::attention_backward", "lse", std::string("[2, 4, 9]"), "Float", "Double"}));
  EXPECT_THAT(call(out, out, lse.narrow(2, 0, 3)),
              Names({"lazy::attention_backward", "lse", std::string("[2, 4, 9]"), std::string("[2, 4, 3]")}));
}

// Some weights are below the smallest normal float16 number (2^-14), and some are below the smallest subnormal one
// (2^-24). The CPU multiplies fp32 weights with V, so the output has only the rounding errors of exp, of lse and of the
// output itself. A GPU rounds each weight to a multiple of 2^-24 before the product. On both devices, the weight of
// every key counts as nonzero. The gradient of V is stored in float16, where it is rounded to the nearest multiple of
// 2^-24 and not flushed to zero.
TEST(AttentionOperator, TinyElasticWeights_AreNotFlushedInFloat16) {
  constexpr int64_t kKeys = 20000;
  at::manual_seed(7);
  const auto here = [](const at::Tensor& t) { return t.to(test::test_device()); };
  const at::Tensor q = at::zeros({1, 1, 1, 16}), k = at::randn({1, kKeys, 1, 16});
  const at::Tensor v = (1000 + 500 * at::randn({1, kKeys, 1, 8})).to(at::kHalf);
  AttentionOptions options;
  options.return_stats = true;
  for (const double tau : {0.0, -0.98, -0.9998}) {  // each weight is (1 + tau) / 20000
    const auto computed = [&](at::ScalarType type) {
      const at::Tensor values = here(v).to(type).set_requires_grad(true);
      const auto parameter = type == at::kDouble ? at::kDouble : at::kFloat;
      const auto [out, lse, stats] = attention(here(q).to(type), here(k.to(at::kHalf)).to(type), values, {},
                                               here(at::full({1}, tau, parameter)), options);
      const at::Tensor gradient = torch::autograd::grad({out.sum()}, {values})[0];
      return std::tuple(out.detach().to(at::kDouble).cpu(), gradient.to(at::kDouble).cpu(), stats.cpu());
    };
    const auto [out, gradient, stats] = computed(at::kHalf);
    const auto [true_out, true_gradient, true_stats] = computed(at::kDouble);
    const double weight_error = test::test_device().is_cuda() ? 0x1p-25 : 0,
                 of_values = v.to(at::kDouble).abs().mean().item<double>();
    EXPECT_LE((out - true_out).abs().max().item<double>(),
              0x1p-11 * true_out.abs().max().item<double>() + (0x1p-19 + kKeys * weight_error) * of_values)
        << tau;
    EXPECT_LE((gradient - true_gradient).abs().max().item<double>(), 0x1p-25 + 0x1p-19 / kKeys) << tau;
    EXPECT_TRUE(at::allclose(stats.to(at::kDouble), true_stats.to(at::kDouble), 1e-2, 1e-4))
        << tau << stats << true_stats;
  }
}

TEST(AttentionOperator, SecondDerivative_Throws) {
  const Inputs in = inputs(at::kFloat);
  const at::Tensor out = std::get<0>(attention(in.q, in.k, in.v, in.bias, in.tau, {}));
  const auto first = torch::autograd::grad({out.sum()}, {in.q}, {}, true, true);
  EXPECT_THAT(test::torch_error_of([&] { first[0].sum().backward(); }), Names({"lazy::attention_backward"}));
}

}  // namespace

}  // namespace lazy::ops
