#include "train/anomaly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/error_of.h"

namespace lazy::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST(AnomalyPolicy, NonFiniteValue_StopsByDefault) {
  AnomalyState state;
  EXPECT_EQ(check_anomaly({}, state, 2, 1e30).action, AnomalyAction::none);  // spike detection is disabled by default
  EXPECT_THAT(check_anomaly({}, state, -kNan, 1).problem, Names({"loss", "nan"}));
  EXPECT_THAT(check_anomaly({}, state, 2, kInfinity).problem, Names({"gradient", "inf"}));
  EXPECT_EQ(check_anomaly({}, state, 2, kInfinity).action, AnomalyAction::stop);
  EXPECT_TRUE(state.losses.empty());
}

TEST(AnomalyPolicy, ConsecutiveSkips_AreCountedAndLimited) {
  AnomalyOptions options;
  options.on_nan = AnomalyAction::skip;
  options.max_skips = 2;
  AnomalyState state;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(check_anomaly(options, state, kNan, 1).action, AnomalyAction::skip);
    EXPECT_EQ(check_anomaly(options, state, kNan, 1).action, AnomalyAction::skip);
    if (round == 2) break;
    EXPECT_EQ(check_anomaly(options, state, 1, 1).action, AnomalyAction::none);
  }
  const AnomalyDecision last = check_anomaly(options, state, kNan, 1);
  EXPECT_EQ(last.action, AnomalyAction::stop);
  EXPECT_THAT(last.limit, Names({2, "training.max_skips"}));
  EXPECT_EQ(state.skipped, 6);
}

TEST(AnomalyPolicy, RollBacks_AreLimitedPerRun) {
  AnomalyOptions options;
  options.on_nan = AnomalyAction::roll_back;
  options.max_roll_backs = 1;
  AnomalyState state;
  EXPECT_EQ(check_anomaly(options, state, kNan, 1).action, AnomalyAction::roll_back);
  EXPECT_EQ(check_anomaly(options, state, 1, 1).action, AnomalyAction::none);
  const AnomalyState kept = anomaly_state_from_json(nlohmann::ordered_json::parse(to_json(state).dump()));
  AnomalyState resumed = kept;
  EXPECT_EQ(check_anomaly(options, resumed, kNan, 1).action, AnomalyAction::stop);
}

TEST(AnomalyPolicy, Spike_IsRelativeToMedianOfNormalSteps) {
  AnomalyOptions options;
  options.on_spike = AnomalyAction::skip;
  options.spike_factor = 3;
  options.spike_window = 5;
  AnomalyState state;
  for (const double loss : {2.0, 100.0, 2.2, 2.4})
    EXPECT_EQ(check_anomaly(options, state, loss, 1).action, AnomalyAction::none);  // the window is not full yet
  EXPECT_EQ(check_anomaly(options, state, 50, 1).action, AnomalyAction::none);
  // The median of the losses {2, 100, 2.2, 2.4, 50} is 2.4, and the loss 7 is below three times this value.
  EXPECT_EQ(check_anomaly(options, state, 7, 1).action, AnomalyAction::none);
  AnomalyState resumed = anomaly_state_from_json(nlohmann::ordered_json::parse(to_json(state).dump()));
  for (AnomalyState* which : {&state, &resumed}) {
    const AnomalyDecision high = check_anomaly(options, *which, 21.7, 1);
    EXPECT_EQ(high.action, AnomalyAction::skip);
    EXPECT_THAT(high.problem, Names({"loss", "21.7", "3.1", 5}));  // 21.7 is 3.1 times 7
    EXPECT_THAT(check_anomaly(options, *which, 2, 3.1).problem, Names({"gradient", "3.1", 5}));
    EXPECT_EQ(which->losses.size(), 5u);
    EXPECT_EQ(which->losses.back(), 7);  // the loss of a skipped step is not added to the window
  }
}

}  // namespace
}  // namespace lazy::train
