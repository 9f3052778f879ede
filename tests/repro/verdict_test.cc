// Verdicts, intervals and the measures of distance biases, on inputs whose answer is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/statistics.h"
#include "repro/distance_bias.h"
#include "repro/verdict.h"

namespace lazy::repro {
namespace {

const Claim kClaim{"A is below B", "published", "nats", "texts"};

TEST(Verdict, ARelationFollowsFromTheWholeInterval) {
  EXPECT_EQ(judge_sign(kClaim, {-0.2, -0.3, -0.1, 9}, ExpectedSign::negative).verdict, Verdict::reproduced);
  EXPECT_EQ(judge_sign(kClaim, {0.2, 0.1, 0.3, 9}, ExpectedSign::negative).verdict, Verdict::refuted);
  EXPECT_EQ(judge_sign(kClaim, {-0.2, -0.5, 0.1, 9}, ExpectedSign::negative).verdict, Verdict::open);
  EXPECT_EQ(judge_sign(kClaim, {0.2, 0.1, 0.3, 9}, ExpectedSign::positive).verdict, Verdict::reproduced);
  EXPECT_EQ(judge_sign(kClaim, {0, 0, 0, 9}, ExpectedSign::positive).verdict, Verdict::open)
      << "no difference decides nothing";
  EXPECT_EQ(judge_sign(kClaim, {0.1, 0, 0.2, 9}, ExpectedSign::positive).verdict, Verdict::open)
      << "an interval that touches zero contains it";
}

TEST(Verdict, AFewTextsOrHeadsDecideNothing) {
  EXPECT_EQ(judge_sign(kClaim, {-0.2, -0.3, -0.1, 8}, ExpectedSign::negative).verdict, Verdict::reproduced);
  const Finding few = judge_sign(kClaim, {-0.2, -0.3, -0.1, 7}, ExpectedSign::negative);
  EXPECT_EQ(few.verdict, Verdict::open);
  EXPECT_TRUE(few.estimate);
  EXPECT_EQ(judge_value(kClaim, {0.6, 0.599, 0.65, 4}, 0.5958, "").verdict, Verdict::open);
}

TEST(Verdict, WhatIsNotANumberDecidesNothing) {
  const Finding f = judge_sign(kClaim, {std::nan(""), 1, 2, 9}, ExpectedSign::positive);
  EXPECT_EQ(f.verdict, Verdict::open);
  EXPECT_FALSE(f.estimate);
  EXPECT_EQ(judge_value(kClaim, {1, 0, INFINITY, 9}, 1, "").verdict, Verdict::open);
}

TEST(Verdict, AValueIsComparedOnlyWhereItCanBe) {
  EXPECT_EQ(judge_value(kClaim, {0.6, 0.55, 0.65, 9}, 0.5958, "").verdict, Verdict::reproduced);
  EXPECT_EQ(judge_value(kClaim, {0.6, 0.599, 0.65, 9}, 0.5958, "").verdict, Verdict::refuted);
  const Finding open = judge_value(kClaim, {0.6, 0.599, 0.65, 9}, 0.5958, "another model");
  EXPECT_EQ(open.verdict, Verdict::open);
  EXPECT_EQ(open.reason, "another model");
  EXPECT_EQ(open.estimate->value, 0.6) << "what was found is shown all the same";
  EXPECT_EQ(judge_count(kClaim, 1838, 16113, "").verdict, Verdict::refuted);
  EXPECT_EQ(judge_count(kClaim, 16113, 16113, "").verdict, Verdict::reproduced);
}

TEST(Bootstrap, TheMeansIntervalIsTheTextbookOne) {
  Random random(3);
  std::vector<double> values(400);
  for (double& v : values) v = random.uniform();
  const Estimate e = bootstrap_mean(values);
  EXPECT_EQ(e.n, 400);
  EXPECT_DOUBLE_EQ(e.value, mean_of(values));
  const double half = 1.96 * std::sqrt(variance_of(values) / 400);
  EXPECT_NEAR(e.low, e.value - half, 0.15 * half);
  EXPECT_NEAR(e.high, e.value + half, 0.15 * half);
}

TEST(Bootstrap, SeedsThatDisagreeWidenTheInterval) {
  const std::vector<double> low(50, 1.0), high(50, 2.0);
  const Estimate within = bootstrap_mean(low), both = bootstrap_mean(Groups{low, high});
  EXPECT_EQ(within.low, within.high);
  EXPECT_DOUBLE_EQ(both.value, 1.5);
  EXPECT_DOUBLE_EQ(both.low, 1);
  EXPECT_DOUBLE_EQ(both.high, 2);
}

TEST(Bootstrap, DifferencesOfIndependentSamples) {
  const std::vector<double> a{5, 6, 7, 8}, b{1, 2, 3, 4};
  const Estimate mean = bootstrap_difference(a, b);
  EXPECT_DOUBLE_EQ(mean.value, 4);
  EXPECT_GT(mean.low, 0);
  EXPECT_DOUBLE_EQ(bootstrap_variance_difference({1, 9, 1, 9}, {4, 4, 4, 4}).value, 64.0 / 3);
  EXPECT_THROW(bootstrap_mean(std::vector<double>{}), Error);
}

// A pattern with known answers: positive at once, a dip at distance 5, back to nearly zero, nothing far away.
BiasCurve inhibited() {
  BiasCurve c(512, 0.0);
  c[0] = 1;
  c[1] = 0.5;
  for (int d = 2; d <= 10; ++d) c[static_cast<size_t>(d)] = -0.8;
  for (int d = 11; d <= 100; ++d) c[static_cast<size_t>(d)] = -0.2 * (100 - d) / 89;
  return c;
}

TEST(BiasCurves, InhibitionOfReturnByItsFourConditions) {
  const InhibitionOfReturn r = inhibition_of_return(inhibited());
  EXPECT_TRUE(r.holds);
  EXPECT_DOUBLE_EQ(r.first, 0.75);
  EXPECT_DOUBLE_EQ(r.dip, -0.8);
  EXPECT_GT(r.recovery, -0.2);
  EXPECT_DOUBLE_EQ(r.far, 0);

  BiasCurve penalizes_itself = inhibited();
  penalizes_itself[0] = -1;
  EXPECT_FALSE(inhibition_of_return(penalizes_itself).holds);

  BiasCurve no_dip = inhibited();
  for (int d = 2; d <= 10; ++d) no_dip[static_cast<size_t>(d)] = 0.1;
  EXPECT_FALSE(inhibition_of_return(no_dip).holds);

  BiasCurve no_recovery = inhibited();
  for (size_t d = 11; d <= 100; ++d) no_recovery[d] = -0.9;
  EXPECT_FALSE(inhibition_of_return(no_recovery).holds);

  BiasCurve far_away = inhibited();
  for (size_t d = 101; d < 512; ++d) far_away[d] = -0.3;
  EXPECT_FALSE(inhibition_of_return(far_away).holds);

  BiasCurve alibi(512);
  for (size_t d = 0; d < 512; ++d) alibi[d] = -0.01 * static_cast<double>(d);
  EXPECT_FALSE(inhibition_of_return(alibi).holds);
  EXPECT_THROW(inhibition_of_return(BiasCurve(101, 1.0)), Error);
}

TEST(BiasCurves, TheEffectiveRangeIsTheLastDistanceAboveFivePercent) {
  BiasCurve c(300, 0.0);
  c[0] = -2;
  c[40] = 0.11;  // above 5 % of 2
  c[200] = 0.1;  // not above
  EXPECT_EQ(effective_range(c), 40);
  EXPECT_EQ(effective_range(BiasCurve(10, 0.0)), 0);
  EXPECT_EQ(effective_range(BiasCurve(10, -1.0)), 9);
}

TEST(BiasCurves, SlopeAndMeans) {
  BiasCurve line(200);
  for (size_t d = 0; d < 200; ++d) line[d] = 3 - 0.5 * static_cast<double>(d);
  EXPECT_NEAR(slope(line, 100), -0.5, 1e-12);
  EXPECT_DOUBLE_EQ(mean_between(line, 0, 1), 2.75);
  EXPECT_DOUBLE_EQ(mean_between(line, 198, 511), 3 - 0.5 * 198.5);
  EXPECT_THROW(mean_between(line, 200, 300), Error);
}

}  // namespace
}  // namespace lazy::repro
