#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace lazy::train {
namespace {

TEST(Schedule, WarmsUpLinearlyFromZero) {
  const Schedule schedule{.peak = 4e-4, .warmup_steps = 1024, .steps = 20480};
  EXPECT_EQ(schedule.rate(0), 0);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 4e-4 / 1024);
  EXPECT_DOUBLE_EQ(schedule.rate(512), 2e-4);
  EXPECT_DOUBLE_EQ(schedule.rate(1024), 4e-4);
}

TEST(Schedule, CosineFollowsTheFormulaOfTheRecipe) {
  const Schedule schedule{.peak = 4e-4, .warmup_steps = 1024, .steps = 20480};
  for (const int64_t t : {1024, 1025, 5000, 10752, 20479}) {
    const double x = (t - 1024.0) / (20480.0 - 1024.0);
    EXPECT_DOUBLE_EQ(schedule.rate(t), 4e-4 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * x)))) << t;
  }
  EXPECT_DOUBLE_EQ(schedule.rate(10752), 4e-4 * 0.55);  // half way
  EXPECT_DOUBLE_EQ(schedule.rate(20480), 4e-5);
  EXPECT_DOUBLE_EQ(schedule.rate(30000), 4e-5);  // stays there
}

TEST(Schedule, LinearReachesTheSameEnd) {
  const Schedule schedule{
      .peak = 1, .warmup_steps = 0, .steps = 10, .min_factor = 0.2, .decay = Schedule::Decay::linear};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(5), 0.6);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 0.2);
}

TEST(Schedule, WarmupMayLastTheWholeRun) {
  const Schedule schedule{.peak = 1, .warmup_steps = 10, .steps = 10};
  EXPECT_DOUBLE_EQ(schedule.rate(9), 0.9);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 1);
}

}  // namespace
}  // namespace lazy::train
