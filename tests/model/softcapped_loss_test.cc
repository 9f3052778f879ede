// Tests of the cross-entropy of logits with a soft cap and of its gradients against plain loops in float64.
#include "model/blocks/softcapped_loss.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lazy {
namespace {

constexpr int64_t kTokens = 7, kWidth = 5, kVocabulary = 11;
constexpr double kCap = 1.5;

struct SoftcapCase {
  at::Tensor hidden, weight, labels;
};

SoftcapCase softcap_case() {
  at::Generator generator = at::detail::createCPUGenerator(4);
  const auto normal = [&](int64_t rows, int64_t columns) {
    return at::empty({rows, columns}, at::kDouble).normal_(0, 1, generator);
  };
  SoftcapCase c{normal(kTokens, kWidth), normal(kVocabulary, kWidth),
                at::randint(0, kVocabulary, {kTokens}, generator, at::TensorOptions().dtype(at::kLong))};
  c.labels[2] = -100;
  return c;
}

// Returns the log-probability of each label, or 0 for ignored labels.
std::vector<double> softcap_definition(const SoftcapCase& c) {
  std::vector<double> out;
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto label = c.labels[t].item<int64_t>();
    double sum = 0, own = 0;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      double z = 0;
      for (int64_t d = 0; d < kWidth; ++d) z += c.hidden[t][d].item<double>() * c.weight[v][d].item<double>();
      z = kCap * std::tanh(z / kCap);
      sum += std::exp(z);
      if (v == label) own = z;
    }
    out.push_back(label < 0 ? 0 : own - std::log(sum));
  }
  return out;
}

double softcap_mean(const std::vector<double>& log_probs) {
  double sum = 0;
  for (const double value : log_probs) sum -= value;
  return sum / (kTokens - 1);
}

TEST(SoftcappedLoss, Loss_MatchesDefinition) {
  const SoftcapCase c = softcap_case();
  const std::vector<double> expected = softcap_definition(c);
  const auto [loss, log_prob, correct] = softcapped_cross_entropy(c.hidden, c.weight, c.labels, kCap);
  EXPECT_NEAR(loss.item<double>(), softcap_mean(expected), 1e-12);
  const at::Tensor best = softcapped(at::linear(c.hidden, c.weight), kCap).argmax(1);
  for (int64_t t = 0; t < kTokens; ++t) {
    EXPECT_NEAR(log_prob[t].item<double>(), expected[static_cast<size_t>(t)], 1e-12) << t;
    EXPECT_EQ(correct[t].item<bool>(), best[t].item<int64_t>() == c.labels[t].item<int64_t>()) << t;
  }
}

TEST(SoftcappedLoss, LargeVocabulary_IsAccurateInFp32) {
  constexpr int64_t kLarge = 262144;
  at::Tensor column = at::full({kLarge}, -1.25);
  column[0] = 0;
  const at::Tensor weight = at::stack({column, at::zeros_like(column)}, 1),
                   hidden = at::tensor({1.0f, 0.0f}).repeat({2, 1});
  const at::Tensor labels = at::tensor({int64_t{0}, int64_t{7}});
  const double cap = 30, other = cap * std::tanh(-1.25 / cap);
  const double sum = std::log1p((kLarge - 1) * std::exp(other));
  const auto [loss, log_prob, correct] = softcapped_cross_entropy(hidden, weight, labels, cap);
  EXPECT_NEAR(log_prob[0].item<double>(), -sum, 2e-6);
  EXPECT_NEAR(log_prob[1].item<double>(), other - sum, 2e-6);
  EXPECT_NEAR(loss.item<double>(), sum - other / 2, 2e-6);
}

TEST(SoftcappedLoss, Gradients_MatchFiniteDifferences) {
  SoftcapCase c = softcap_case();
  c.hidden.requires_grad_(true), c.weight.requires_grad_(true);
  const double scale = 3;
  (std::get<0>(softcapped_cross_entropy(c.hidden, c.weight, c.labels, kCap)) * scale).backward();
  const at::NoGradGuard guard;
  for (const at::Tensor& leaf : {c.hidden, c.weight}) {
    const at::Tensor numbers = leaf.view({-1});
    for (int64_t n = 0; n < numbers.numel(); ++n) {
      const double step = 1e-5;
      numbers[n] += step;
      const double above = softcap_mean(softcap_definition(c));
      numbers[n] -= 2 * step;
      const double below = softcap_mean(softcap_definition(c));
      numbers[n] += step;
      EXPECT_NEAR(leaf.grad().view({-1})[n].item<double>(), scale * (above - below) / (2 * step), 1e-8);
    }
  }
}

// The distance of our results from float64 must be at most twice the distance of plain operations that round only
// inputs and outputs, plus one rounding.
TEST(SoftcappedLoss, Bf16_IsWithinTwiceReferenceError) {
  const SoftcapCase c = softcap_case();
  const auto results = [&](at::ScalarType type, bool fused) {
    const at::Tensor hidden = c.hidden.to(at::kBFloat16).to(type).requires_grad_(true),
                     weight = c.weight.to(at::kBFloat16).to(type).requires_grad_(true);
    at::Tensor loss;
    if (fused) {
      loss = std::get<0>(softcapped_cross_entropy(hidden, weight, c.labels, kCap));
    } else {
      loss = at::nll_loss(at::log_softmax(softcapped(at::linear(hidden, weight), kCap), 1), c.labels, {},
                          at::Reduction::Mean, -100);
    }
    loss.backward();
    return std::vector<at::Tensor>{loss.detach().to(at::kDouble), hidden.grad().to(at::kDouble),
                                   weight.grad().to(at::kDouble)};
  };
  const auto exact = results(at::kDouble, false), peer = results(at::kFloat, false), own = results(at::kBFloat16, true);
  for (size_t n = 0; n < exact.size(); ++n) {
    const auto rms = [](const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); };
    const at::Tensor rounded = n == 0 ? peer[n] : peer[n].to(at::kBFloat16).to(at::kDouble);
    EXPECT_LE(rms(own[n] - exact[n]), 2 * rms(rounded - exact[n]) + 0.0079 * rms(exact[n])) << n;
  }
}

}  // namespace
}  // namespace lazy
