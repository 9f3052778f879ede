#include "train/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/config.h"
#include "support/error_of.h"

namespace lazy::train {
namespace {

TEST(Schedule, Warmup_IsLinearFromZero) {
  const Schedule schedule{.peak = 4e-4, .warmup_steps = 1024, .steps = 20480};
  EXPECT_EQ(schedule.rate(0), 0);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 4e-4 / 1024);
  EXPECT_DOUBLE_EQ(schedule.rate(512), 2e-4);
  EXPECT_DOUBLE_EQ(schedule.rate(1024), 4e-4);
}

TEST(Schedule, Cosine_MatchesFormula) {
  const Schedule schedule{.peak = 4e-4, .warmup_steps = 1024, .steps = 20480};
  for (const int64_t t : {1024, 1025, 5000, 10752, 20479}) {
    const double x = (t - 1024.0) / (20480.0 - 1024.0);
    EXPECT_DOUBLE_EQ(schedule.rate(t), 4e-4 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * x)))) << t;
  }
  EXPECT_DOUBLE_EQ(schedule.rate(10752), 4e-4 * 0.55);  // this step is in the middle of the cosine decay
  EXPECT_DOUBLE_EQ(schedule.rate(20480), 4e-5);
  EXPECT_DOUBLE_EQ(schedule.rate(30000), 4e-5);  // after the last step, the rate stays constant
}

TEST(Schedule, Linear_ReachesTheSameEnd) {
  const Schedule schedule{
      .peak = 1, .warmup_steps = 0, .steps = 10, .min_factor = 0.2, .decay = Schedule::Decay::linear};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(5), 0.6);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 0.2);
}

// Parses an [lr_scheduler] section with these lines for a run of 100 steps.
Schedule parsed(const std::string& lines) {
  Config config = Config::parse("[lr_scheduler]\n" + lines);
  return Schedule::from_config(config, 1e-3, 100);
}

TEST(Schedule, WarmupStableDecay_FollowsDecayTypes) {
  const Schedule linear = parsed("warmup_steps = 10\ndecay_ratio = 0.2\ndecay_type = \"linear\"\nmin_lr_factor = 0");
  EXPECT_DOUBLE_EQ(linear.rate(5), 0.5e-3);
  for (const int64_t t : {10, 11, 50, 79, 80}) EXPECT_EQ(linear.rate(t), 1e-3) << t;
  EXPECT_NEAR(linear.rate(85), 0.75e-3, 1e-15);
  EXPECT_NEAR(linear.rate(99), 0.05e-3, 1e-15);
  EXPECT_EQ(linear.rate(100), 0);
  const Schedule sqrt = parsed("warmup_steps = 10\ndecay_ratio = 0.2\ndecay_type = \"sqrt\"");
  for (const int64_t t : {10, 79, 80}) EXPECT_EQ(sqrt.rate(t), 1e-3) << t;
  EXPECT_NEAR(sqrt.rate(85), 1e-3 * (0.1 + 0.9 * 0.5), 1e-15);  // sqrt(5 / 20) = 0.5
  for (const int64_t t : {81, 90, 99}) {
    EXPECT_NEAR(sqrt.rate(t), 1e-3 * (0.1 + 0.9 * (1 - std::sqrt((t - 80) / 20.0))), 1e-15) << t;
  }
  EXPECT_DOUBLE_EQ(sqrt.rate(100), 1e-4);
  EXPECT_NEAR(parsed("decay_ratio = 0.2").rate(90), 1e-3 * 0.55, 1e-15);  // cosine decay: middle of the last 20 steps
}

TEST(Schedule, DecayRatio_IsValidated) {
  const auto error = [](const std::string& lines) { return error_of([&] { parsed(lines); }); };
  EXPECT_EQ(error("warmup_steps = 10\ndecay_ratio = 0.9"), "");
  EXPECT_THAT(error("warmup_steps = 10\ndecay_ratio = 0.95"),
              Names({"lr_scheduler.decay_ratio", "0.95", 100, "warmup_steps", 10, "training.steps"}));
  EXPECT_THAT(error("decay_ratio = 1.5"), Names({"lr_scheduler.decay_ratio", 0, 1, "1.5"}));
  EXPECT_THAT(error("decay_type = \"wsd\""), Names({"lr_scheduler.decay_type", "cosine", "linear", "sqrt", "wsd"}));
}

TEST(Schedule, Settings_IncludeTheDecay) {
  nlohmann::ordered_json settings;
  parsed("").add_settings(settings);
  EXPECT_EQ(settings["lr_scheduler.decay_type"], "cosine");
  parsed("decay_ratio = 0.2\ndecay_type = \"sqrt\"").add_settings(settings);
  EXPECT_EQ(settings["lr_scheduler.decay_type"], "sqrt, decay_ratio 0.2");
}

TEST(Schedule, Warmup_MayLastTheWholeRun) {
  const Schedule schedule{.peak = 1, .warmup_steps = 10, .steps = 10};
  EXPECT_DOUBLE_EQ(schedule.rate(9), 0.9);
  EXPECT_DOUBLE_EQ(schedule.rate(10), 1);
}

// Parses a [model] section with these lines.
OffsetSchedule shifts(const std::string& lines) {
  Config config = Config::parse("[model]\n" + lines);
  const OffsetSchedule schedule = OffsetSchedule::from_config(config);
  config.check_all_used();
  return schedule;
}

// Returns the amount by which the schedule has shifted the offsets (tau) after `taken` steps of a run with 80 steps.
double shift_after(const OffsetSchedule& schedule, int64_t taken) {
  double shift = 0;
  for (int64_t step = 0; step <= taken; ++step) shift = schedule.shift(shift, step, 80);
  return shift;
}

TEST(OffsetSchedule, Shift_IsLinearOverFractionOrNumberOfSteps) {
  const OffsetSchedule fraction = shifts("offset_schedule = { from = 0, to = -1, steps = 0.25 }");
  EXPECT_EQ(shift_after(fraction, 0), 0);
  EXPECT_NEAR(shift_after(fraction, 5), -0.25, 1e-14);
  EXPECT_NEAR(shift_after(fraction, 19), -0.95, 1e-14);
  EXPECT_EQ(shift_after(fraction, 20), -1);
  EXPECT_EQ(shift_after(fraction, 80), -1);
  const OffsetSchedule steps = shifts("offset_schedule = { from = -0.5, to = 1.5, steps = 40 }");
  EXPECT_EQ(shift_after(steps, 0), -0.5);
  EXPECT_NEAR(shift_after(steps, 10), 0, 1e-14);
  EXPECT_EQ(shift_after(steps, 79), 1.5);
  EXPECT_EQ(shift_after(shifts("offset_schedule.to = -1\noffset_schedule.steps = 0"), 0), -1);
  EXPECT_EQ(shift_after(shifts(""), 40), 0);
}

// With training.minutes, the number of steps changes during a run, and a resumed run starts with the configured number
// again. The shift of the offsets must not jump when this happens.
TEST(OffsetSchedule, Shift_DoesNotJumpIfNumberOfStepsChanges) {
  const OffsetSchedule schedule = shifts("offset_schedule = { from = 0, to = -1, steps = 0.5 }");
  double shift = 0;
  const auto steps_of = [](int64_t step) { return step < 20 || (step >= 60 && step < 63) ? 100000 : 200; };
  for (int64_t step = 0; step <= 200; ++step) {
    const double next = schedule.shift(shift, step, steps_of(step));
    EXPECT_LE(next, shift) << step;
    EXPECT_GT(next, shift - 0.02) << step;
    shift = next;
  }
  EXPECT_EQ(shift, -1);
}

TEST(OffsetSchedule, ResumedWithoutSchedule_KeepsShift) {
  EXPECT_EQ(shifts("").shift(-0.75, 30, 80), -0.75);
  const OffsetSchedule other = shifts("offset_schedule = { from = 0, to = -2, steps = 40 }");
  EXPECT_NEAR(other.shift(-0.75, 31, 80), -0.75 - 1.25 / 10, 1e-14);
  EXPECT_EQ(shifts("offset_schedule = { to = -2, steps = 20 }").shift(-0.75, 31, 80), -2);
}

TEST(OffsetSchedule, InvalidSchedule_IsRejected) {
  for (const char* lines : {"offset_schedule = { from = 0 }", "offset_schedule = { to = -1, steps = 2.5 }",
                            "offset_schedule = { to = -1, steps = -1 }", "offset_schedule = { to = \"low\" }",
                            "offset_schedule = { to = -1, until = 10 }", "offset_schedule = -1"}) {
    EXPECT_THROW(shifts(lines), Error) << lines;
  }
}

}  // namespace
}  // namespace lazy::train
