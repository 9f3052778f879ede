// Tests of attention over a prefix and a window against an explicit softmax with a mask.
#include "model/mixers/titans/attention.h"

#include "model/mixers/recurrence_checks.h"
#include "ops/device.h"

namespace lazy {
namespace {

using testing::gradients_of;
using testing::Tensors;

// Computes attention with an explicit mask. t contains q, k, v and prefix_q, each (batch, length, heads, dim), and
// prefix_k and prefix_v, each (prefix, heads, dim). q may have fewer tokens than k; its tokens are then the last ones.
at::Tensor written_out(const Tensors& t, int64_t window, const at::Tensor& document) {
  const int64_t queries = t[0].size(1), length = t[1].size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(3)));
  const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor own = at::matmul(by_head(t[0]), by_head(t[1]).transpose(-1, -2));
  const at::Tensor prefix = at::matmul(by_head(t[3]), t[4].permute({1, 2, 0}));
  const at::Tensor distance = (at::arange(queries) + (length - queries)).unsqueeze(1) - at::arange(length);
  at::Tensor seen = distance.ge(0);
  if (window > 0) seen = seen.logical_and(distance < window);
  if (document.defined()) seen = seen.logical_and(document.unsqueeze(1) == document);
  const at::Tensor masked = (own * scale).masked_fill(seen.logical_not(), -1e30);
  const at::Tensor weights = at::cat({prefix * scale, masked}, -1).softmax(-1);
  const at::Tensor values =
      at::cat({t[5].transpose(0, 1).unsqueeze(0).expand({t[0].size(0), -1, -1, -1}), by_head(t[2])}, 2);
  return at::matmul(weights, values).transpose(1, 2);
}

Tensors inputs(int64_t batch, int64_t queries, int64_t length, at::ScalarType type, int64_t dim = 16) {
  at::manual_seed(7);
  const auto normal = [&](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).to(type); };
  return {normal({batch, queries, 2, dim}),
          normal({batch, length, 2, dim}),
          normal({batch, length, 2, dim}),
          normal({batch, queries, 2, dim}),
          normal({3, 2, dim}),
          normal({3, 2, dim})};
}

TEST(PrefixAttention, PrefixAttention_MatchesOneSoftmax) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& [queries, length, window] :
         {std::array<int64_t, 3>{1, 1, -1}, {40, 40, 7}, {150, 150, 64}, {5, 33, 9}, {70, 70, -1}}) {
      const Tensors in = inputs(2, queries, length, type);
      const auto ours = [window = window](const Tensors& t) {
        ops::AttentionOptions options{.normalizer = "softmax", .window = window};
        return Tensors{prefix_attention(t[0], t[1], t[2], t[3], t[4], t[5], options)};
      };
      const auto theirs = [window = window](const Tensors& t) { return Tensors{written_out(t, window, {})}; };
      const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
      testing::expect_close(ours(in), theirs(in), tolerance, "out");
      testing::expect_close(gradients_of(ours, in), gradients_of(theirs, in), tolerance, "gradient");
    }
  }
}

class PrefixAttentionOf : public ::testing::TestWithParam<int64_t> {};
// The parameter is the number of tokens. On a GPU, up to 256 tokens and more than 256 tokens use different kernels.
INSTANTIATE_TEST_SUITE_P(Tokens, PrefixAttentionOf, ::testing::Values(150, 300));

TEST_P(PrefixAttentionOf, HalfPrecision_IsCloseToDouble) {
  const Tensors in = inputs(2, GetParam(), GetParam(), at::kBFloat16, 64);
  Tensors there, exact;
  for (const at::Tensor& x : in) {
    there.push_back(x.to(ops::test::test_device())), exact.push_back(x.to(at::kDouble));
  }
  const auto ours = [](const Tensors& t) {
    ops::AttentionOptions options{.normalizer = "softmax", .window = 64};
    return Tensors{prefix_attention(t[0], t[1], t[2], t[3], t[4], t[5], options)};
  };
  const auto theirs = [](const Tensors& t) { return Tensors{written_out(t, 64, {})}; };
  const auto all = [](const auto& f, const Tensors& t) {
    Tensors out = f(t);
    for (const at::Tensor& gradient : gradients_of(f, t)) out.push_back(gradient);
    return out;
  };
  const Tensors got = all(ours, there), want = all(theirs, exact);
  for (size_t n = 0; n < want.size(); ++n) {
    const at::Tensor error = got[n].detach().to(at::kCPU, at::kDouble) - want[n];
    EXPECT_LT(error.norm().item<double>(), 0.01 * want[n].norm().item<double>()) << n;
  }
}

TEST(PrefixAttention, PackedDocuments_EachAttendToPrefix) {
  const Tensors in = inputs(1, 50, 50, at::kFloat);
  const at::Tensor document = at::cat({at::zeros({17}), at::ones({33})});
  const auto ours = [](const Tensors& t) {
    ops::AttentionOptions options{.normalizer = "softmax", .window = 6};
    options.cu_seqlens_q = options.cu_seqlens_k = at::tensor({0, 17, 50}, at::kInt);
    const auto drop = [](const at::Tensor& x) { return x.squeeze(0); };
    return Tensors{prefix_attention(drop(t[0]), drop(t[1]), drop(t[2]), drop(t[3]), t[4], t[5], options).unsqueeze(0)};
  };
  const auto theirs = [&](const Tensors& t) { return Tensors{written_out(t, 6, document)}; };
  testing::expect_close(ours(in), theirs(in), 1e-5, "out");
  testing::expect_close(gradients_of(ours, in), gradients_of(theirs, in), 1e-5, "gradient");
}

}  // namespace
}  // namespace lazy
