// Tests the statistics of learned distance biases on curves with known answers.
#include "repro/distance_bias.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace lazy::repro {
namespace {

// A curve that shows inhibition of return: positive at distances 0 and 1, negative from 2 to 10 (minimum), nearly zero
// at 100 and zero beyond.
BiasCurve inhibited() {
  BiasCurve c(512, 0.0);
  c[0] = 1;
  c[1] = 0.5;
  for (int d = 2; d <= 10; ++d) c[static_cast<size_t>(d)] = -0.8;
  for (int d = 11; d <= 100; ++d) c[static_cast<size_t>(d)] = -0.2 * (100 - d) / 89;
  return c;
}

TEST(BiasCurves, InhibitionOfReturn_NeedsAllFourConditions) {
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

TEST(BiasCurves, EffectiveRange_IsTheLastDistanceAboveFivePercent) {
  BiasCurve c(300, 0.0);
  c[0] = -2;
  c[40] = 0.11;  // above 5 % of the maximum 2
  c[200] = 0.1;  // equal to 5 % of the maximum, so not above
  EXPECT_EQ(effective_range(c), 40);
  EXPECT_EQ(effective_range(BiasCurve(10, 0.0)), 0);
  EXPECT_EQ(effective_range(BiasCurve(10, -1.0)), 9);
}

TEST(BiasCurves, SlopeAndMeans_MatchALine) {
  BiasCurve line(200);
  for (size_t d = 0; d < 200; ++d) line[d] = 3 - 0.5 * static_cast<double>(d);
  EXPECT_NEAR(slope(line, 100), -0.5, 1e-12);
  EXPECT_DOUBLE_EQ(mean_between(line, 0, 1), 2.75);
  EXPECT_DOUBLE_EQ(mean_between(line, 198, 511), 3 - 0.5 * 198.5);
  EXPECT_THROW(mean_between(line, 200, 300), Error);
}

}  // namespace
}  // namespace lazy::repro
