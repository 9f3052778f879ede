#include "train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "scratch.h"
#include "support/error_of.h"

namespace lazy::train {
namespace {
using ::testing::ElementsAre;

TEST(CheckpointWriter, BackgroundWrite_DoesNotBlockAndReportsDuration) {
  std::promise<void> release;
  CheckpointWriter writer;
  std::atomic<bool> done = false;
  writer.start(10, true, [&, gate = release.get_future().share()] {
    gate.wait();
    done = true;
  });
  EXPECT_EQ(writer.started(), 10);
  EXPECT_EQ(writer.saved(), 0);
  EXPECT_FALSE(done);
  EXPECT_FALSE(writer.take_write_seconds().has_value());
  writer.check();  // check() does not wait for the write
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    release.set_value();
  });
  EXPECT_GT(writer.wait(), 0);
  EXPECT_TRUE(done);
  later.join();
  EXPECT_EQ(writer.saved(), 10);
  EXPECT_GT(writer.take_write_seconds().value(), 0);
  EXPECT_FALSE(writer.take_write_seconds().has_value());  // the duration is reported only once
}

TEST(CheckpointWriter, ForegroundWrite_IsDoneOnReturn) {
  CheckpointWriter writer;
  const auto self = std::this_thread::get_id();
  std::thread::id wrote;
  writer.start(3, false, [&] { wrote = std::this_thread::get_id(); });
  EXPECT_EQ(wrote, self);
  EXPECT_EQ(writer.saved(), 3);
  EXPECT_EQ(error_of<RunError>([&] { writer.start(4, false, [] { throw RunError("full"); }); }), "full");
  EXPECT_EQ(writer.saved(), 3);
}

TEST(CheckpointWriter, WriteError_IsRethrownInTrainingThread) {
  CheckpointWriter writer;
  writer.start(10, true, [] {});
  writer.wait();
  for (const bool waits : {false, true}) {
    writer.start(20, true, [] { throw RunError("full"); });
    const std::string error = error_of<RunError>([&] {
      if (waits) writer.wait();
      while (true) writer.check(), std::this_thread::yield();
    });
    EXPECT_EQ(error, "full");
    EXPECT_EQ(writer.saved(), 10);
    EXPECT_NO_THROW(writer.wait());  // the error is thrown only once
  }
}

TEST(CheckpointWriter, Destructor_WaitsForWrite) {
  std::atomic<bool> done = false;
  {
    CheckpointWriter writer;
    writer.start(1, true, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = true;
    });
  }
  EXPECT_TRUE(done);
}

// Writes checkpoints in the background while the training thread modifies the data of the next one.
TEST(CheckpointWriter, BackgroundWrites_ProduceValidCheckpoints) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 2, 4);
  CheckpointWriter writer;
  std::string weights, copy;
  for (int64_t step = 1; step <= 7; ++step) {
    weights = std::string(10000, static_cast<char>('a' + step));
    writer.wait();
    copy = weights;
    TrainState state;
    state.step = step;
    writer.start(step, true, [&, state] {
      store.save(state,
                 [&](const std::filesystem::path& folder) { write_file_atomic(folder / "model.safetensors", copy); });
    });
  }
  writer.wait();
  EXPECT_THAT(store.steps(), ElementsAre(4, 6, 7));  // step 4 is kept because it is a multiple of keep_every
  EXPECT_EQ(read_file(store.path(7) / "model.safetensors"), weights);
  EXPECT_EQ(store.newest_valid()->state.step, 7);
}

}  // namespace
}  // namespace lazy::train
