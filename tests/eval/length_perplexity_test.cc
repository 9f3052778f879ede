#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "core/random.h"
#include "eval/length/measurement.h"
#include "eval/length/perplexity.h"
#include "length_stub.h"
#include "small_model.h"

namespace lazy::eval::length {

TokenizedText numbered(const std::vector<int>& sizes) {
  TokenizedText text;
  int32_t id = 3;  // ids start at 3, because 0 is BOS
  for (const int size : sizes) {
    text.documents.emplace_back();
    for (int i = 0; i < size; ++i) text.documents.back().push_back(id++);
    text.tokens += size;
  }
  return text;
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum;
}

TEST(LengthRolling, Score_MatchesTokenByTokenEvaluation) {
  const auto model = std::make_shared<LanguageModel>(small_config(90), 7);
  const TokenizedText text = numbered({13, 20, 4});
  std::vector<int64_t> stream = {0};
  for (const auto& document : text.documents) stream.insert(stream.end(), document.begin(), document.end());
  for (const int64_t length : {8, 37}) {
    const RollingSums sums = score_rolling(make_scorer(model, {}, false), text, length, 0, {}, "");
    std::vector<double> expected(3);
    for (int64_t i = 1; i < 38; ++i) {  // stream[i] is predicted from the preceding tokens of its window
      const int64_t window = (i - 1) / length * length, begin = std::min(window, std::max<int64_t>(0, 37 - length));
      const std::vector<int64_t> input(stream.begin() + (window + length > 37 ? begin : window), stream.begin() + i);
      const at::NoGradGuard no_grad;
      const at::Tensor log_p = at::log_softmax(
          model->logits(model->forward(at::tensor(input, at::kLong).unsqueeze(0)).hidden).to(at::kDouble), -1);
      expected[i <= 13 ? 0 : i <= 33 ? 1 : 2] -= log_p[0][-1][stream[static_cast<size_t>(i)]].item<double>();
    }
    for (size_t d = 0; d < 3; ++d) EXPECT_NEAR(sums.loss[d], expected[d], 1e-4 * expected[d]) << length << " " << d;
    EXPECT_EQ(sums.tokens, (std::vector<double>{13, 20, 4}));
  }
}

TEST(LengthRolling, Score_CountsEveryTokenOnce) {
  const TokenizedText text = numbered({30, 1, 17, 50});
  for (const bool bos : {false, true}) {
    for (const bool per_document : {false, true}) {
      for (const int64_t stride : {0, 3, 16}) {
        std::map<int32_t, int> seen;
        size_t longest = 0;
        const Scorer spy = stub([&](const std::vector<int32_t>& before, int32_t target) {
          ++seen[target];
          longest = std::max(longest, before.size());
          EXPECT_TRUE(!bos || before[0] == 0);
          return TargetScore{-1, false};
        });
        const RollingSums sums = score_rolling(spy, text, 16, 0, {bos, per_document, stride, 0}, "");
        for (int32_t id = 3; id < 101; ++id) EXPECT_EQ(seen[id], 1) << id;
        EXPECT_LE(longest, 16u);
        EXPECT_EQ(sums.tokens, (std::vector<double>{30, 1, 17, 50}));  // BOS tokens between documents are not counted
        EXPECT_EQ(sums.loss, sums.tokens);
      }
    }
  }
  EXPECT_THROW(
      score_rolling(stub([](const auto&, int32_t) { return TargetScore{}; }), text, 16, 0, {false, false, 17, 0}, ""),
      Error);
}

TEST(LengthRolling, Bins_FollowNumberOfPrecedingTokens) {
  EXPECT_EQ(position_bin(1), 0);
  EXPECT_EQ(position_bin(2), 1);
  EXPECT_EQ(position_bin(3), 2);
  EXPECT_EQ(position_bin(4), 2);
  EXPECT_EQ(position_bin(5), 3);
  EXPECT_EQ(position_bin(4096), 12);
  EXPECT_EQ(bin_first(12), 2049);
  EXPECT_EQ(bin_last(12), 4096);
  // A stub model whose loss is the number of tokens in the context of the target.
  const Scorer counting = stub([](const std::vector<int32_t>& before, int32_t) {
    return TargetScore{-float(before.size()), false};
  });
  const RollingSums sums = score_rolling(counting, numbered({40, 24}), 16, 0, {}, "");
  // the 64 tokens form four windows of 16 tokens
  const std::vector<double> mean = {1, 2, 3.5, 6.5, 12.5}, tokens = {4, 4, 8, 16, 32};
  ASSERT_EQ(sums.bin_loss.size(), mean.size());
  for (size_t b = 0; b < mean.size(); ++b) {
    EXPECT_EQ(total(sums.bin_tokens[b]), tokens[b]);
    EXPECT_DOUBLE_EQ(total(sums.bin_loss[b]) / total(sums.bin_tokens[b]), mean[b]);
  }
  EXPECT_EQ(total(sums.loss), 4 * 136);
}

TEST(LengthRolling, TextWithoutDocuments_IsDividedIntoBlocks) {
  const Scorer one = stub([](const std::vector<int32_t>&, int32_t id) {
    return TargetScore{id < 13 ? -1.0f : -2.0f, false};
  });
  const RollingSums sums = score_rolling(one, numbered({25}), 8, 10, {}, "");
  EXPECT_EQ(sums.tokens, (std::vector<double>{10, 10, 5}));
  EXPECT_EQ(sums.loss, (std::vector<double>{10, 20, 10}));
}

TEST(LengthRolling, Score_CountsNonFiniteLosses) {
  const Scorer broken = stub([](const std::vector<int32_t>&, int32_t id) {
    return TargetScore{id == 5 ? NAN : id == 6 ? -INFINITY : -1.0f, false};
  });
  const RollingSums sums = score_rolling(broken, numbered({10}), 4, 0, {}, "");
  EXPECT_EQ(sums.not_finite, 2);
  EXPECT_TRUE(std::isnan(sums.loss[0]));
}

TEST(LengthBootstrap, SameSeed_GivesTheSameInterval) {
  std::vector<double> loss, tokens;
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    tokens.push_back(50 + double(random.below(100)));
    loss.push_back(tokens.back() * (3 + random.uniform()));
  }
  const Bootstrap a(200, 1000, 42), b(200, 1000, 42), c(200, 1000, 43);
  EXPECT_EQ(a.ratio(loss, tokens), b.ratio(loss, tokens));
  EXPECT_NE(a.ratio(loss, tokens), c.ratio(loss, tokens));
  const auto interval = *a.ratio(loss, tokens);
  const double mean = total(loss) / total(tokens);
  EXPECT_LT(interval.low, mean);
  EXPECT_GT(interval.high, mean);
  // The 95 % interval of the ratio estimator under the normal approximation is 3.92 standard errors wide. Resampling
  // adds a relative error of a few percent.
  double variance = 0;
  for (size_t i = 0; i < 200; ++i) variance += std::pow(loss[i] - mean * tokens[i], 2);
  const double width = 3.92 * std::sqrt(variance) / total(tokens);
  EXPECT_NEAR((interval.high - interval.low) / width, 1, 0.15);
}

TEST(LengthBootstrap, TooFewUnits_GiveNoInterval) {
  const std::vector<double> one = {3}, two = {3, 3}, ones = {1, 1}, zeros = {0, 0};
  EXPECT_FALSE(Bootstrap(1, 100, 1).ratio(one, one));
  EXPECT_FALSE(Bootstrap(2, 100, 1).ratio(two, zeros));
  EXPECT_EQ(*Bootstrap(2, 100, 1).ratio(two, ones), (ConfidenceInterval{3.0, 3.0}));
  EXPECT_THROW(Bootstrap(2, 100, 1).ratio(two, one), Error);
}

TEST(LengthBootstrap, Wilson_MatchesKnownValues) {
  const auto half = *wilson(5, 10);  // the interval is 0.2366 to 0.7634 (Wilson 1927)
  EXPECT_NEAR(half.low, 0.2366, 1e-4);
  EXPECT_NEAR(half.high, 0.7634, 1e-4);
  EXPECT_NEAR(wilson(5, 5)->low, 0.5655, 1e-4);
  EXPECT_EQ(wilson(5, 5)->high, 1);
  EXPECT_FALSE(wilson(0, 0));
}

}  // namespace lazy::eval::length
