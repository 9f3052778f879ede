#include "model/recorded_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "support/error_of.h"

namespace lazy {
namespace {

struct NoRoom : ops::Recorder {
  std::function<void()> record(const std::function<void()>&) override { throw std::runtime_error("out of memory"); }
};

TEST(RecordedWork, FailedCapture_LogsWarningAndReturnsEmpty) {
  int done = 0;
  NoRoom recorder;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(record_or_warn(
      recorder, [&] { ++done; }, "steps"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Names({"steps", std::string("out of memory")}));
  EXPECT_EQ(done, 0);
  record_or_warn(
      *ops::make_recorder(at::kCPU), [&] { ++done; }, "steps")();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace lazy
