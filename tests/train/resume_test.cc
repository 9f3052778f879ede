// Runs `lazy train`, ends it in every way in which a run can end, and resumes it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/file.h"
#include "core/text.h"
#include "support/error_of.h"
#include "tiny_run.h"
#include "train/checkpoint.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::EndsWith;

const std::vector<std::string> kStateFiles{"model.safetensors", "optimizer.safetensors", "config.json",
                                           "tokenizer_config.json"};

std::string config_in(const ScratchFolder& scratch) { return write_tiny_config(scratch.path()).string(); }

// A run of 40 steps without interruption. It is created only once per process.
const fs::path& straight_run() {
  static const ScratchFolder scratch;
  static const fs::path run = [] {
    const Ended ended = run_lazy({config_in(scratch)}, scratch.path());
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return scratch / "run";
  }();
  return run;
}

void expect_like_straight(const fs::path& run) {
  EXPECT_EQ(log_without_times(run), log_without_times(straight_run()));
  EXPECT_TRUE(same_files(run / "checkpoints/step-00000040", straight_run() / "checkpoints/step-00000040", kStateFiles));
  EXPECT_TRUE(same_files(run / "model", straight_run() / "model", {"model.safetensors", "config.json"}));
}

TEST(Resume, SigkillDuringStep_ResumesToTheSameRun) {
  const ScratchFolder scratch;
  {
    Child child({config_in(scratch)}, scratch.path());
    // Kill the run after the checkpoint of step 20 was started. Its write may still be in progress.
    ASSERT_TRUE(child.wait_for_step(scratch / "run", 24));
    while (!fs::exists(scratch / "run/checkpoints/step-00000020"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    child.send(SIGKILL);
    EXPECT_EQ(child.wait().signal, SIGKILL);
  }
  ASSERT_FALSE(fs::exists(scratch / "run/checkpoints/step-00000030")) << "the kill came too late";
  const Ended ended = run_lazy({config_in(scratch), "--resume"}, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({(scratch / "run").string(), 20, 40})));
  expect_like_straight(scratch / "run");
}

TEST(Resume, RepeatedSigkills_ResumeToTheSameRun) {
  const ScratchFolder scratch;
  const std::string config = config_in(scratch);
  for (const int step : {3, 11, 12, 29}) {
    Child child({config, "--resume"}, scratch.path());
    ASSERT_TRUE(child.wait_for_step(scratch / "run", step));
    child.send(SIGKILL);
    child.wait();
  }
  const Ended ended = run_lazy({config, "--resume"}, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  expect_like_straight(scratch / "run");
}

TEST(Resume, Signal_SavesCheckpointAndExits) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const ScratchFolder scratch;
    const std::string config = config_in(scratch);
    Child child({config}, scratch.path());
    ASSERT_TRUE(child.wait_for_step(scratch / "run", 13));
    child.send(signal);
    const Ended stopped = child.wait();
    EXPECT_EQ(stopped.exit_code, 128 + signal) << stopped.errors;
    const auto saved = CheckpointStore(scratch / "run/checkpoints", 0).steps();
    ASSERT_FALSE(saved.empty());
    EXPECT_THAT(last_line(stopped.errors),
                Names({std::string(signal == SIGINT ? "SIGINT" : "SIGTERM"), saved.back(), 40, "--resume"}));
    EXPECT_GE(saved.back(), 13);
    EXPECT_NE(saved.back() % 10, 0) << "a checkpoint that was due anyway does not test the signal";
    const Ended ended = run_lazy({config, "--resume"}, scratch.path());
    ASSERT_EQ(ended.exit_code, 0) << ended.errors;
    expect_like_straight(scratch / "run");
  }
}

TEST(Resume, SignalInLongFirstStep_StopsBetweenMicroBatches) {
  const ScratchFolder scratch;
  std::vector<std::string> arguments{config_in(scratch), "--resume", "--set",
                                     "training.gradient_accumulation_steps=1000000"};
  Child child(arguments, scratch.path());
  while (!fs::exists(scratch / "run/log.jsonl")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  child.send(SIGTERM);
  const Ended stopped = child.wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM);
  EXPECT_THAT(last_line(stopped.errors), Names({"SIGTERM", 0, 40}));
  EXPECT_TRUE(fs::is_empty(scratch / "run/checkpoints"));
  const Ended ended = run_lazy({arguments[0], "--resume"}, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  expect_like_straight(scratch / "run");
}

TEST(Resume, DamagedCheckpoint_IsSkipped) {
  const ScratchFolder scratch;
  fs::copy(straight_run(), scratch / "run", fs::copy_options::recursive);
  fs::remove_all(scratch / "run/model");
  const fs::path weights = scratch / "run/checkpoints/step-00000040/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 100);
  const Ended ended = run_lazy({config_in(scratch), "--resume"}, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({"damaged-step-00000040", "model.safetensors"})));
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({(scratch / "run").string(), 30, 40})));
  expect_like_straight(scratch / "run");
}

TEST(Resume, FinishedRun_IsNotChanged) {
  const ScratchFolder scratch;
  fs::copy(straight_run(), scratch / "run", fs::copy_options::recursive);
  const std::string config = config_in(scratch), before = read_file(scratch / "run/log.jsonl");
  const Ended done = run_lazy({config, "--resume"}, scratch.path());
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_THAT(done.errors, Names({(scratch / "run").string(), 40}));
  EXPECT_THAT(done.output, EndsWith("run/model\n"));
  const Ended refused = run_lazy({config}, scratch.path());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors,
              IsMessage("lazy: train: " + (scratch / "run").string() +
                        " contains a run with a checkpoint of step 40; add --resume to continue it, or select another "
                        "folder with --set training.output=DIR\n"));
  EXPECT_EQ(read_file(scratch / "run/log.jsonl"), before);
  EXPECT_TRUE(same_files(scratch / "run/model", straight_run() / "model", {"model.safetensors"}));
}

// Starts the run again with the file config.toml of its run folder, from a different working directory.
TEST(Resume, ConfigTomlOfRun_ContinuesTheRun) {
  const ScratchFolder scratch;
  fs::copy(straight_run(), scratch / "run", fs::copy_options::recursive);
  fs::remove_all(scratch / "run/checkpoints/step-00000040");
  fs::remove_all(scratch / "run/model");
  const Ended ended = run_lazy(
      {(scratch / "run/config.toml").string(), "--set", "training.output=" + (scratch / "run").string(), "--resume"},
      scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  expect_like_straight(scratch / "run");
  const auto settings = [](const fs::path& run) {
    return verify_checkpoint(run / "checkpoints/step-00000040").settings;
  };
  EXPECT_EQ(settings(scratch / "run"), settings(straight_run()));
}

TEST(Resume, ChangedSettings_AreLoggedAndChangedModelIsRejected) {
  const ScratchFolder scratch;
  fs::copy(straight_run(), scratch / "run", fs::copy_options::recursive);
  const std::string config = config_in(scratch);
  const Ended other = run_lazy({config, "--resume", "--set", "model.num_hidden_layers=3", "--set", "training.steps=50"},
                               scratch.path());
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(last_line(other.errors), Names({"state.json", "model.num_hidden_layers", 2, 3}));
  const Ended longer = run_lazy({config, "--resume", "--set", "training.steps=50"}, scratch.path());
  EXPECT_EQ(longer.exit_code, 0) << longer.errors;
  EXPECT_THAT(split(longer.errors, '\n'), Contains(Names({"training.steps", 50, 40})));
  EXPECT_EQ(losses(scratch / "run").size(), 50u);
}

TEST(Resume, SecondProcess_IsRejected) {
  const ScratchFolder scratch;
  const std::string config = config_in(scratch);
  Child first({config, "--set", "training.steps=4000"}, scratch.path());
  ASSERT_TRUE(first.wait_for_step(scratch / "run", 1));
  const ScratchFolder other;
  const Ended second = run_lazy({config, "--resume"}, other.path());
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(last_line(second.errors), Names({"train", (scratch / "run").string()}));
}

TEST(Faults, NonFiniteLoss_StopsBeforeUpdate) {
  const ScratchFolder scratch;
  const std::string config = config_in(scratch);
  ASSERT_EQ(run_lazy({config, "--set", "training.steps=20"}, scratch.path()).exit_code, 0);
  fs::remove_all(scratch / "run/model");
  const Ended ended = run_lazy({config, "--resume", "--set", "optimizer.lr=1e38"}, scratch.path());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(last_line(ended.errors), Names({"train", 20}));
  EXPECT_FALSE(fs::exists(scratch / "run/model"));
  const auto found = CheckpointStore(scratch / "run/checkpoints", 0).newest_valid();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->state.step, 20);
}

TEST(Faults, FullDisk_KeepsPreviousCheckpoint) {
  const ScratchFolder scratch;
  const std::string config = config_in(scratch);
  ASSERT_EQ(run_lazy({config, "--set", "training.steps=10"}, scratch.path()).exit_code, 0);
  const fs::path checkpoints = scratch / "run/checkpoints";
  const auto weights = static_cast<int64_t>(fs::file_size(checkpoints / "step-00000010/model.safetensors"));
  // With the first limit, the weights do not fit. With the second limit, the weights fit, but the optimizer state,
  // which is twice as large, does not.
  for (const int64_t limit : {weights - 1, weights + 1}) {
    const Ended ended = run_lazy({config, "--resume", "--set", "training.steps=40"}, scratch.path(), limit);
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(last_line(ended.errors), Names({20, std::string(std::strerror(EFBIG))}));
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()),
              1);  // no incomplete folder may remain
    CheckpointStore store(checkpoints, 0);
    ASSERT_TRUE(store.newest_valid().has_value());
    EXPECT_EQ(store.newest_valid()->state.step, 10);
  }
  const Ended ended = run_lazy({config, "--resume"}, scratch.path());  // without the file size limit, the run continues
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
}

// Repeats the previous test on a file system that is actually full: a small tmpfs in a separate mount namespace.
TEST(Faults, FullFileSystem_KeepsPreviousCheckpoint) {
  if (std::system("unshare -rm true 2>/dev/null") != 0)
    GTEST_SKIP() << "unshare -rm (a private mount namespace) is not allowed here";
  const ScratchFolder scratch;
  const std::string config = config_in(scratch);
  const auto weights = fs::file_size(straight_run() / "model/model.safetensors");
  // A checkpoint needs three times the size of the weights, and the finished model needs this size once. The file
  // system has five and a half times this size. This is sufficient for one checkpoint and the model, but not for a
  // second checkpoint.
  std::ofstream(scratch / "script") << fmt::format(R"(set -e
mkdir -p run && mount -t tmpfs -o size={} tmpfs run
export OMP_WAIT_POLICY=passive
{} train {} --set training.steps=10
code=0; {} train {} --set training.steps=40 --resume 2> errors || code=$?
ls -A run/checkpoints > left
echo $code > code
rm -rf run/model
{} train {} --set training.steps=10 --resume 2> again
)",
                                                   weights * 11 / 2, LAZY_BINARY, config, LAZY_BINARY, config,
                                                   LAZY_BINARY, config);
  const std::string command = fmt::format("cd {} && unshare -rm sh ./script > output 2>&1", scratch.path().string());
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(scratch / "output");
  EXPECT_EQ(read_file(scratch / "code"), "1\n");
  EXPECT_EQ(read_file(scratch / "left"), "step-00000010\n");
  EXPECT_THAT(last_line(read_file(scratch / "errors")), Names({20, std::string(std::strerror(ENOSPC))}));
  EXPECT_THAT(read_file(scratch / "again"), Names({(scratch / "run").string(), 10}));
}

}  // namespace
}  // namespace lazy::train
