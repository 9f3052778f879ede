#include "core/stop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <thread>

namespace lazy {
namespace {

// A process never resets its signal flag, so each case runs in a child process.
TEST(StopEndsProcess, Signal_EndsTheProcessWithMessageAndExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    EXPECT_EXIT(
        {
          install_stop_handlers();
          const StopEndsProcess at_once("sinks");
          std::thread([signal] { std::raise(signal); }).join();
        },
        testing::ExitedWithCode(128 + signal), std::string("lazy: sinks: stopped by ") + stop_signal_name(signal));
  }
}

TEST(StopEndsProcess, EarlierSignal_EndsTheProcess) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        std::raise(SIGTERM);
        const StopEndsProcess at_once("probe");
      },
      testing::ExitedWithCode(128 + SIGTERM), "probe");
}

TEST(StopEndsProcess, LaterSignal_IsOnlyRecorded) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        { const StopEndsProcess at_once("sinks"); }
        std::raise(SIGTERM);
        ::_exit(stop_signal() == SIGTERM ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace lazy
