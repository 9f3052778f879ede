#include "train/fault_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace lazy::train {
namespace {
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST(FaultPolicy, StopsAtWhatIsNotFiniteByDefault) {
  FaultState state;
  EXPECT_EQ(judge({}, state, 2, 1e30).action, FaultAction::none);  // spikes are not looked for
  EXPECT_EQ(judge({}, state, -kNan, 1).problem, "the loss is nan");
  EXPECT_EQ(judge({}, state, 2, kInfinity).problem, "the gradient norm is inf");
  EXPECT_EQ(judge({}, state, 2, kInfinity).action, FaultAction::stop);
  EXPECT_TRUE(state.losses.empty());
}

TEST(FaultPolicy, SkipsAreCountedAndBoundedInARow) {
  FaultOptions options;
  options.on_nan = FaultAction::skip;
  options.max_skips = 2;
  FaultState state;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(judge(options, state, kNan, 1).action, FaultAction::skip);
    EXPECT_EQ(judge(options, state, kNan, 1).action, FaultAction::skip);
    if (round == 2) break;
    EXPECT_EQ(judge(options, state, 1, 1).action, FaultAction::none);
  }
  const Verdict last = judge(options, state, kNan, 1);
  EXPECT_EQ(last.action, FaultAction::stop);
  EXPECT_EQ(last.limit, "2 steps in a row were skipped, training.max_skips");
  EXPECT_EQ(state.skipped, 6);
}

TEST(FaultPolicy, RollBacksAreBoundedInTheRun) {
  FaultOptions options;
  options.on_nan = FaultAction::roll_back;
  options.max_roll_backs = 1;
  FaultState state;
  EXPECT_EQ(judge(options, state, kNan, 1).action, FaultAction::roll_back);
  EXPECT_EQ(judge(options, state, 1, 1).action, FaultAction::none);
  const FaultState kept = fault_state_from_json(nlohmann::ordered_json::parse(to_json(state).dump()));
  FaultState resumed = kept;
  EXPECT_EQ(judge(options, resumed, kNan, 1).action, FaultAction::stop);
}

TEST(FaultPolicy, ASpikeIsAgainstTheMedianOfGoodSteps) {
  FaultOptions options;
  options.on_spike = FaultAction::skip;
  options.spike_factor = 3;
  options.spike_window = 5;
  FaultState state;
  for (const double loss : {2.0, 100.0, 2.2, 2.4})
    EXPECT_EQ(judge(options, state, loss, 1).action, FaultAction::none);  // not full yet
  EXPECT_EQ(judge(options, state, 50, 1).action, FaultAction::none);
  // Of {2, 100, 2.2, 2.4, 50} the median is 2.4.
  EXPECT_EQ(judge(options, state, 7, 1).action, FaultAction::none);  // 3 x 2.4 is more; the median is 7 now
  FaultState resumed = fault_state_from_json(nlohmann::ordered_json::parse(to_json(state).dump()));
  for (FaultState* which : {&state, &resumed}) {
    const Verdict high = judge(options, *which, 21.7, 1);
    EXPECT_EQ(high.action, FaultAction::skip);
    EXPECT_THAT(high.problem, HasSubstr("the loss is 21.7"));
    EXPECT_THAT(judge(options, *which, 2, 3.1).problem,
                HasSubstr("the gradient norm is 3.1, 3.1 times the median of the last 5 steps"));
    EXPECT_EQ(which->losses.size(), 5u);
    EXPECT_EQ(which->losses.back(), 7);  // a skipped step is no measure of the usual
  }
}

}  // namespace
}  // namespace lazy::train
