#include "generate/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "support/error_of.h"

namespace lazy {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f};

std::map<int64_t, int> draw(const SamplingOptions& options, int times = 20000, const TokenCounts& counts = {}) {
  Sampler sampler(options);
  std::map<int64_t, int> out;
  for (int i = 0; i < times; ++i) ++out[sampler.sample(kLogits, counts)];
  return out;
}

// Checks that the number of samples with this id is within five standard deviations of its expected value.
void expect_share(const std::map<int64_t, int>& counts, int64_t id, double probability, int times = 20000) {
  const double sigma = std::sqrt(times * probability * (1 - probability));
  EXPECT_NEAR(counts.count(id) ? counts.at(id) : 0, times * probability, 5 * sigma) << id;
}

TEST(Sampler, Greedy_SelectsTheFirstLargestLogit) {
  EXPECT_EQ(draw({.temperature = 0}, 10), (std::map<int64_t, int>{{1, 10}}));
}

TEST(Sampler, Frequencies_FollowTheSoftmax) {
  for (const double temperature : {1.0, 0.5, 3.0}) {
    const auto counts = draw({.temperature = temperature, .seed = 3});
    double total = 0;
    for (const float x : kLogits) total += std::exp(x / temperature);
    for (size_t i = 0; i < kLogits.size(); ++i)
      expect_share(counts, static_cast<int64_t>(i), std::exp(kLogits[i] / temperature) / total);
  }
}

TEST(Sampler, TopK_KeepsTheLargest_TiesById) {
  EXPECT_EQ(draw({.top_k = 1}).size(), 1u);
  EXPECT_EQ(draw({.top_k = 1}).count(1), 1u);
  const auto counts = draw({.top_k = 3});
  EXPECT_EQ(counts.size(), 3u);
  const double total = 2 * std::exp(3.0) + std::exp(2.0);
  expect_share(counts, 2, std::exp(2.0) / total);
  EXPECT_EQ(draw({.top_k = 99}).size(), 5u);
}

TEST(Sampler, TopP_KeepsTheSmallestSufficientSet) {
  double total = 0;
  for (const float x : kLogits) total += std::exp(x);
  const double two = 2 * std::exp(3.0) / total;  // total probability of the two most likely tokens
  EXPECT_EQ(draw({.top_p = two - 0.01}).size(), 2u);
  EXPECT_EQ(draw({.top_p = two + 0.01}).size(), 3u);
  EXPECT_EQ(draw({.top_p = 1e-9}).size(), 1u);
}

TEST(Sampler, RepetitionPenalty_DividesOrMultiplies) {
  EXPECT_EQ(draw({.temperature = 0, .repetition_penalty = 2}, 5, {{1, {.prompt = 1}}}).count(4),
            1u);  // the penalty halves the logit 3 of token 1, so that token 4 is the most likely one
  EXPECT_EQ(draw({.temperature = 0, .repetition_penalty = 2}, 5, {{1, {.prompt = 1}}, {4, {.text = 1}}}).count(2), 1u);
  // the penalty doubles the negative logit -1 of token 3
  const auto counts = draw({.repetition_penalty = 2, .seed = 1}, 20000, {{3, {.text = 2}}});
  const double total = 2 * std::exp(3.0) + std::exp(2.0) + std::exp(1.0) + std::exp(-2.0);
  expect_share(counts, 3, std::exp(-2.0) / total);
}

TEST(Sampler, PresenceAndFrequencyPenalties_IgnoreThePrompt) {
  const TokenCounts counts = {{1, {.prompt = 5}}, {4, {.prompt = 1, .text = 2}}};
  EXPECT_EQ(draw({.temperature = 0, .presence_penalty = 2}, 5, {{1, {.prompt = 5}}}).count(1), 1u);
  const auto share = [&](const SamplingOptions& options, float of_token_4) {
    const auto drawn = draw(options, 20000, counts);
    const double total = std::exp(1.0) + std::exp(3.0) + std::exp(2.0) + std::exp(-1.0) + std::exp(of_token_4);
    expect_share(drawn, 4, std::exp(of_token_4) / total);
    expect_share(drawn, 1, std::exp(3.0) / total);
  };
  share({.seed = 7, .presence_penalty = 1.5}, 1.5f);
  share({.seed = 7, .frequency_penalty = 0.5}, 2.0f);
  share({.seed = 7, .presence_penalty = 0.25, .frequency_penalty = -0.5}, 3.75f);
}

TEST(Sampler, PresencePenalty_AppliesAfterTheRepetitionPenalty) {
  // The logit 3 is first divided by the repetition penalty, and then the presence penalty is subtracted: 3 / 2 - 1, not
  // (3 - 1) / 2.
  const auto counts = draw({.repetition_penalty = 2, .seed = 2, .presence_penalty = 1}, 20000, {{1, {.text = 1}}});
  const double total = std::exp(1.0) + std::exp(0.5) + std::exp(2.0) + std::exp(-1.0) + std::exp(3.0);
  expect_share(counts, 1, std::exp(0.5) / total);
}

TEST(Sampler, LogitBias_IsAdded) {
  EXPECT_EQ(draw({.temperature = 0, .logit_bias = {{3, 100.0f}}}, 3).count(3), 1u);
  EXPECT_EQ(draw({.logit_bias = {{1, -100.0f}, {4, -100.0f}, {2, -100.0f}}}, 2000).size(), 2u);
  EXPECT_EQ(draw({.temperature = 0, .logit_bias = {{1, -1.0f}, {4, -0.5f}}}, 3).count(4), 1u);
  // Biases are added before the penalties: (1 + 3) / 2, not 1 / 2 + 3.
  EXPECT_EQ(
      draw({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{0, 3.0f}}}, 3, {{0, {.text = 1}}}).count(1), 1u);
  EXPECT_THROW(draw({.logit_bias = {{5, 1.0f}}}, 1), Error);
}

TEST(Sampler, MinP_IsRelativeToTheMostLikelyToken) {
  const double of_2 = std::exp(-1.0), of_0 = std::exp(-2.0);  // probabilities relative to the largest one
  EXPECT_EQ(draw({.min_p = of_2 + 0.01}).size(), 2u);
  EXPECT_EQ(draw({.min_p = of_2 - 0.01}).size(), 3u);
  EXPECT_EQ(draw({.min_p = of_0 - 0.01}).size(), 4u);
  EXPECT_EQ(draw({.min_p = 1}).size(), 2u);
  const auto counts = draw({.seed = 4, .min_p = of_2 - 0.01});
  expect_share(counts, 2, std::exp(2.0) / (2 * std::exp(3.0) + std::exp(2.0)));
  // min-p is applied after the temperature. A high temperature makes the distribution flatter, so unlikely tokens
  // exceed the threshold.
  EXPECT_EQ(draw({.temperature = 10, .min_p = of_2}).size(), 5u);
  EXPECT_EQ(draw({.top_k = 1, .min_p = 0.01}).size(), 1u);
}

TEST(Sampler, Seed_DeterminesTheTokens) {
  const auto sequence = [](uint64_t seed) {
    Sampler sampler({.top_p = 0.99, .seed = seed});
    std::vector<int64_t> out;
    for (int i = 0; i < 100; ++i) out.push_back(sampler.sample(kLogits, {}));
    return out;
  };
  EXPECT_EQ(sequence(5), sequence(5));
  EXPECT_NE(sequence(5), sequence(6));
}

TEST(Sampler, InfiniteLogits_AreValid_NaNIsAnError) {
  Sampler sampler({});
  const std::vector<float> masked = {-INFINITY, 0.0f, -INFINITY};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.sample(masked, {}), 1);
  const std::vector<float> broken = {0.0f, NAN};
  EXPECT_THROW(sampler.sample(broken, {}), RunError);
}

TEST(Sampler, InvalidOptions_AreNamedInTheError) {
  const auto error = [](const SamplingOptions& options) { return error_of([&] { options.validate("chat"); }); };
  EXPECT_THAT(error({.temperature = -1}), ::testing::StartsWith("chat: "));
  EXPECT_THAT(error({.temperature = -1}), Names({"temperature", 0, -1}));
  EXPECT_THAT(error({.temperature = NAN}), Names({"temperature", "nan"}));
  EXPECT_THAT(error({.top_k = -1}), Names({"top-k", 0, -1}));
  EXPECT_THAT(error({.top_p = 0}), Names({"top-p", 0, 1}));
  EXPECT_THAT(error({.top_p = 1.5}), Names({"top-p", 0, 1, "1.5"}));
  EXPECT_THAT(error({.repetition_penalty = 0}), Names({"repetition", 0}));
  EXPECT_THAT(error({.min_p = 1.5}), Names({"min-p", 0, 1, "1.5"}));
  EXPECT_THAT(error({.min_p = NAN}), Names({"min-p", "nan"}));
  EXPECT_THAT(error({.presence_penalty = NAN}), Names({"presence", "nan"}));
  EXPECT_THAT(error({.frequency_penalty = INFINITY}), Names({"frequency", "inf"}));
  EXPECT_THAT(error({.logit_bias = {{-1, 0.0f}}}), Names({"bias", 0, -1}));
  EXPECT_THAT(error({.logit_bias = {{1, NAN}}}), Names({"bias", "nan", 1}));
}

}  // namespace
}  // namespace lazy
