#include "core/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lazy {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgressState training() {
  ProgressState state{.title = "train", .unit = "tokens", .note = "step 12345/100000 loss 2.1234"};
  state.total = 3276800000;
  state.done = 404520960;
  state.per_second = 167700;
  state.seconds = 17126;
  return state;
}

TEST(Progress, WideTerminal_LineShowsEverything) {
  const std::string line = progress_line(training(), 200);
  EXPECT_THAT(line, StartsWith("train [##......................]  12 % "));
  EXPECT_THAT(line, EndsWith("tokens/s, 4:45:26 left  step 12345/100000 loss 2.1234"));
}

TEST(Progress, NarrowTerminal_LineKeepsLoss) {
  for (const size_t columns : {79u, 99u, 60u, 40u}) {
    const std::string line = progress_line(training(), columns);
    EXPECT_LE(line.size(), columns);
    EXPECT_THAT(line, HasSubstr("loss 2.1234")) << columns;
  }
  EXPECT_THAT(progress_line(training(), 79), HasSubstr("4:45:26 left"));
  ProgressState validated = training();
  validated.note += ", held out 2.2345 (1.0456 bits/byte)";
  EXPECT_THAT(progress_line(validated, 79), EndsWith("4:45:26 left  step 12345/100000 loss 2.1234, held out 2.2345"));
  EXPECT_THAT(progress_line(validated, 99), EndsWith("loss 2.1234, held out 2.2345 (1.0456 bits/byte)"));
}

TEST(Progress, UnknownTotal_LineShowsAmounts) {
  ProgressState state{.title = "prepare", .unit = "B", .note = "", .total = 0, .done = 1536, .per_second = 1024};
  EXPECT_EQ(progress_line(state, 79), "prepare 1.5 KiB 1.0 KiB/s");
  state.finished = true;
  state.seconds = 75;
  EXPECT_EQ(progress_line(state, 79), "prepare 1.5 KiB 1.0 KiB/s in 1:15");
  EXPECT_LE(progress_line(state, 10).size(), 10u);
}

TEST(Progress, OutputToFile_HasNoBar) {
  ProgressState state = training();
  state.bar = false;
  EXPECT_THAT(progress_line(state, std::string::npos), Not(HasSubstr("[")));
}

}  // namespace
}  // namespace lazy
