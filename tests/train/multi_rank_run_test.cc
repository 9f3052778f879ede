// Tests training runs of several processes on the CPU. The loss curve must match the curve of a single process, and the
// failure of a rank is tested in every way in which it can occur.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <regex>

#include "core/file.h"
#include "core/text.h"
#include "ranks.h"
#include "support/error_of.h"
#include "train/checkpoint.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::Contains;

constexpr int kSteps = 40;

// Each step has 1024 tokens: four micro-batches of 4 x 64 for any number of ranks. The dtype is fp32 because
// expect_same_curve() assumes it; a CPU with bf16 matrix units would use bf16 by default.
std::vector<std::string> arguments(const ScratchFolder& scratch, const std::string& sharding = "replicate",
                                   const std::vector<std::string>& more = {}) {
  std::string text = read_file(write_tiny_config(scratch.path()));
  const std::string accumulation = "gradient_accumulation_steps = 2";
  text.replace(text.find(accumulation), accumulation.size(),
               "global_batch_tokens = 1024\ndtype = \"fp32\"\ndata_parallel = \"" + sharding + "\"");
  std::ofstream(scratch / "tiny.toml") << text;
  std::vector<std::string> out{(scratch / "tiny.toml").string(), "--threads", "1"};
  for (const auto& setting : more) out.insert(out.end(), {"--set", setting});
  return out;
}

void expect_success(const std::vector<Ended>& ended) {
  for (size_t rank = 0; rank < ended.size(); ++rank)
    EXPECT_EQ(ended[rank].exit_code, 0) << "rank " << rank << ": " << ended[rank].errors;
}

const std::vector<double>& one_process() {
  static const std::vector<double> curve = [] {
    const ScratchFolder scratch;
    expect_success({run_lazy(arguments(scratch), scratch.path())});
    return losses(scratch / "run");
  }();
  return curve;
}

// The ranks add the same numbers in a different order than a single process, and each addition rounds by at most 2^-24
// of the sum. Each step therefore changes the weights, and hence the loss, by a few units of 2^-23 more or less than in
// a single process. The bound grows by 8 units per step. The learning rate of step 1 is 0, so the losses of the first
// two steps must equal the losses of the single process up to 1e-12.
void expect_same_curve(const std::vector<double>& curve, const std::vector<double>& wanted) {
  ASSERT_EQ(curve.size(), wanted.size());
  double largest = 0;
  for (size_t i = 0; i < curve.size(); ++i) {
    const double bound = i < 2 ? 1e-12 : 8 * static_cast<double>(i) * std::numeric_limits<float>::epsilon();
    EXPECT_NEAR(curve[i], wanted[i], bound * wanted[i]) << "step " << i + 1;
    largest = std::max(largest, std::abs(curve[i] - wanted[i]) / wanted[i]);
  }
  fmt::print("largest relative difference {:.2g}\n", largest);
}

class Curve : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Curve, LossCurve_MatchesSingleProcess) {
  const auto [count, sharding] = GetParam();
  const ScratchFolder scratch;
  const auto ended = run_ranks(count, arguments(scratch, sharding), scratch.path());
  expect_success(ended);
  EXPECT_THAT(split(ended[0].errors, '\n'), Contains(Names({count, std::string(sharding)})));
  for (int rank = 1; rank < count; ++rank) {  // only rank 0 may write output
    EXPECT_EQ(ended[static_cast<size_t>(rank)].output, "");
    EXPECT_EQ(ended[static_cast<size_t>(rank)].errors, "");
  }
  expect_same_curve(losses(scratch / "run"), one_process());
  EXPECT_TRUE(fs::exists(scratch / "run/model/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Curve, ::testing::Combine(::testing::Values(2, 4), ::testing::Values("replicate", "zero2", "full_shard")),
    [](const auto& info) { return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param)); });

TEST(Distributed, DifferentTokens_ExceedTheBound) {
  const ScratchFolder scratch;
  expect_success(
      run_ranks(2, arguments(scratch, "replicate", {"data.shuffle=false", "training.steps=8"}), scratch.path()));
  const auto curve = losses(scratch / "run");
  EXPECT_GT(std::abs(curve[0] - one_process()[0]), 1e-6);
}

TEST(Distributed, LargerStep_IsLogged) {
  const ScratchFolder scratch;
  const std::vector<std::string> grows{write_tiny_config(scratch.path()).string(), "--threads", "1", "--set",
                                       "training.steps=4"};
  const auto announced = Names({std::string("training.global_batch_tokens"), 512, 1024, 2});
  const auto ended = run_ranks(2, grows, scratch.path());
  expect_success(ended);
  EXPECT_THAT(split(ended[0].errors, '\n'), Contains(announced));
  const ScratchFolder other;
  const auto fixed = run_ranks(2, arguments(other, "replicate", {"training.steps=4"}), other.path());
  expect_success(fixed);
  EXPECT_THAT(fixed[0].errors, ::testing::Not(::testing::HasSubstr("training.global_batch_tokens")));
}

// Returns the settings in the newest checkpoint. A resumed run must have the same settings, otherwise it counts as a
// different run.
nlohmann::ordered_json recorded_settings(const fs::path& run) {
  const CheckpointStore store(run / "checkpoints", 0);
  return verify_checkpoint(store.path(store.steps().back())).settings;
}

TEST(Distributed, Resume_OnDifferentNumberOfRanks) {
  const ScratchFolder scratch;
  {
    Ranks ranks(2, arguments(scratch, "zero2"), scratch.path());
    ASSERT_TRUE(ranks[0].wait_for_step(scratch / "run", 13));
    ranks[1].send(SIGTERM);  // one rank receives the signal, and all ranks stop after the same step
    for (const Ended& ended : ranks.wait()) EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.errors;
  }
  const auto at = CheckpointStore(scratch / "run/checkpoints", 0).steps();
  ASSERT_GE(at.back(), 13);
  ASSERT_LT(at.back(), kSteps);
  const fs::path saved = CheckpointStore(scratch / "run/checkpoints", 0).path(at.back());
  EXPECT_TRUE(fs::exists(saved / "optimizer-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(saved / "optimizer.safetensors"));
  const auto settings = recorded_settings(scratch / "run");
  auto resumed = arguments(scratch, "replicate", {"training.steps=40"});
  resumed.push_back("--resume");
  {
    Ranks ranks(4, resumed, scratch.path());
    ASSERT_TRUE(ranks[0].wait_for_step(scratch / "run", at.back() + 4));
    ranks[0].send(SIGTERM);
    for (const Ended& ended : ranks.wait()) EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.errors;
  }
  const Ended last = run_lazy(resumed, scratch.path());
  ASSERT_EQ(last.exit_code, 0) << last.errors;
  EXPECT_EQ(recorded_settings(scratch / "run"), settings);
  expect_same_curve(losses(scratch / "run"), one_process());
}

// Two ranks with one micro-batch each per step can add their gradients in only one order. The log (including validation
// and attention statistics) and the model must therefore be bitwise equal for every sharding mode.
TEST(Distributed, ShardingModes_AreBitwiseEqual) {
  const auto train = [](const ScratchFolder& scratch, const char* sharding) {
    expect_success(run_ranks(2,
                             arguments(scratch, sharding,
                                       {"training.batch_size=8", "training.steps=12", "training.max_norm=0",
                                        "checkpoint.export=\"every\"", "checkpoint.export_dtype=bf16"}),
                             scratch.path()));
    auto lines = log_without_times(scratch / "run");
    for (auto& line : lines) {
      for (const char* key : {"time_metrics/communication(s)", "grad_norm"}) EXPECT_EQ(line.erase(key), 1u);
    }
    return lines;
  };
  const ScratchFolder whole;
  const auto expected = train(whole, "replicate");
  EXPECT_TRUE(std::any_of(expected.begin(), expected.end(),
                          [](const auto& line) { return line.contains("attention/layer_01/tau_mean"); }));
  for (const char* sharding : {"zero2", "full_shard"}) {
    const ScratchFolder scratch;
    EXPECT_EQ(train(scratch, sharding), expected) << sharding;
    EXPECT_TRUE(same_files(scratch / "run/checkpoints/step-00000012", whole / "run/checkpoints/step-00000012",
                           {"model.safetensors", "config.json"}));
    for (const char* folder : {"run/model", "run/exports/step-00000010"}) {
      EXPECT_TRUE(same_files(scratch / folder, whole / folder, {"model.safetensors", "config.json"}))
          << sharding << " " << folder;
    }
  }
}

// Tests a run in several stages with different numbers of ranks and sharding modes. Each stage continues where the
// previous stage was stopped. Every sharding mode must be able to read the checkpoints of every other mode.
TEST(Distributed, Resume_WithDifferentSharding) {
  const ScratchFolder scratch;
  const std::tuple<int, const char*, int> stages[] = {{2, "full_shard", 6},  {4, "zero2", 12},
                                                      {4, "full_shard", 18}, {1, "full_shard", 24},
                                                      {2, "replicate", 30},  {2, "full_shard", 0}};
  nlohmann::ordered_json settings;  // settings of the first stage of the run
  for (const auto& [count, sharding, until] : stages) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", count, sharding));
    auto command = arguments(scratch, sharding);
    command.push_back("--resume");
    Ranks ranks(count, command, scratch.path());
    if (until > 0) {
      ASSERT_TRUE(ranks[0].wait_for_step(scratch / "run", until));
      ranks[count - 1].send(SIGTERM);
    }
    for (const Ended& ended : ranks.wait()) {
      ASSERT_EQ(ended.exit_code, until > 0 ? 128 + SIGTERM : 0) << ended.errors;
    }
    if (settings.is_null()) settings = recorded_settings(scratch / "run");
    EXPECT_EQ(recorded_settings(scratch / "run"), settings);
  }
  expect_same_curve(losses(scratch / "run"), one_process());
}

// Removes the checkpoints after `step`, as if the run had ended at this step.
void back_to(const fs::path& run, int64_t step) {
  const CheckpointStore store(run / "checkpoints", 0);
  for (const int64_t later : store.steps()) {
    if (later > step) fs::remove_all(store.path(later));
  }
  ASSERT_TRUE(fs::exists(store.path(step)));
  fs::remove_all(run / "model");
}

// The second rank has a different run folder, which contains no checkpoints. Rank 0 then writes all data, and the other
// ranks receive their data from it.
void run_without_a_common_folder(const char* sharding) {
  const ScratchFolder scratch;
  const auto run_apart = [&] {
    auto command = arguments(scratch, sharding);
    command.push_back("--resume");
    auto other = command;
    other.insert(other.end(), {"--set", "training.output=" + (scratch / "elsewhere").string()});
    expect_success(Ranks({command, other}, scratch.path()).wait());
  };
  run_apart();
  EXPECT_TRUE(fs::exists(scratch / "run/checkpoints/step-00000030/optimizer.safetensors"));
  back_to(scratch / "run", 30);
  run_apart();
  EXPECT_FALSE(fs::exists(scratch / "elsewhere"));
  expect_same_curve(losses(scratch / "run"), one_process());
}

TEST(Distributed, SeparateFolders_TrainAndResume) { run_without_a_common_folder("zero2"); }
TEST(Distributed, SeparateFoldersUnderFullSharding_TrainAndResume) { run_without_a_common_folder("full_shard"); }

// The second rank cannot write files as large as its shard of the optimizer state. No incomplete checkpoint may remain,
// and both ranks must report the reason.
TEST(RankFaults, FullDiskOfOneRank_KeepsPreviousCheckpoint) {
  const ScratchFolder scratch;
  auto command = arguments(scratch, "zero2", {"checkpoint.keep_last=0", "training.communication_timeout=4"});
  command.push_back("--resume");
  expect_success(run_ranks(2, command, scratch.path()));
  back_to(scratch / "run", 10);
  const auto share = fs::file_size(scratch / "run/checkpoints/step-00000010/optimizer-00002-of-00002.safetensors");
  for (const Ended& ended :
       Ranks({command, command}, scratch.path(), "train", static_cast<int64_t>(share) - 1).wait()) {
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(split(ended.errors, '\n'),
                Contains(Names({20, "optimizer-00002-of-00002.safetensors", std::string(std::strerror(EFBIG))})));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch / "run/checkpoints"), fs::directory_iterator()), 1);
  expect_success(run_ranks(2, command, scratch.path()));  // without the file size limit, the run continues
  expect_same_curve(losses(scratch / "run"), one_process());
}

// Removes durations and addresses from the messages. Their digits could be mistaken for a rank number.
std::vector<std::string> lines_without_decimals(const std::string& text) {
  return split(std::regex_replace(text, std::regex("[0-9]+([.][0-9]+)+"), ""), '\n');
}

// One rank is ended by a signal. The other ranks must exit and name the failed rank in their messages. The resumed run
// must then have the same loss curve as a single process.
void fail_one(int count, int victim, int signal, const char* sharding) {
  const ScratchFolder scratch;
  // With sharding, all ranks write checkpoints. After every step a checkpoint is written, so that a write is in
  // progress most of the time.
  auto command = arguments(scratch, sharding,
                           {"training.communication_timeout=2",
                            sharding == std::string("replicate") ? "checkpoint.every=10" : "checkpoint.every=1"});
  command.push_back("--resume");
  {
    Ranks ranks(count, command, scratch.path());
    ASSERT_TRUE(ranks[0].wait_for_step(scratch / "run", 13));
    ranks[victim].send(signal);
    for (int rank = 0; rank < count; ++rank) {
      if (rank == victim) continue;
      const Ended ended = ranks[rank].wait();
      EXPECT_EQ(ended.exit_code, 1) << ended.errors;
      EXPECT_THAT(lines_without_decimals(ended.errors), Contains(Names({"distributed", victim})));
      EXPECT_EQ(ended.errors.find("frame #"), std::string::npos) << "a stack trace: " << ended.errors;
    }
    ranks[victim].send(SIGKILL);
    ranks[victim].wait();
  }
  // allow more time, because processes start slowly on a busy machine
  command.insert(command.end(), {"--set", "training.communication_timeout=60"});
  expect_success(run_ranks(count, command, scratch.path()));
  expect_same_curve(losses(scratch / "run"), one_process());
}

TEST(RankFaults, SigkillOfRank0_EndsAllRanks) { fail_one(2, 0, SIGKILL, "replicate"); }
TEST(RankFaults, SigkillOfOtherRank_EndsAllRanks) { fail_one(4, 2, SIGKILL, "zero2"); }
TEST(RankFaults, SigkillUnderFullSharding_EndsAllRanks) { fail_one(4, 1, SIGKILL, "full_shard"); }
TEST(RankFaults, HangingRankUnderFullSharding_EndsAllRanks) { fail_one(2, 1, SIGSTOP, "full_shard"); }
TEST(RankFaults, HangingRank0_EndsAllRanks) { fail_one(2, 0, SIGSTOP, "zero2"); }
TEST(RankFaults, HangingOtherRank_EndsAllRanks) { fail_one(4, 1, SIGSTOP, "replicate"); }

TEST(RankFaults, MissingRank_IsNamed) {
  const ScratchFolder scratch;
  const auto command = arguments(scratch, "replicate", {"training.communication_timeout=1"});
  const Ended ended = Child(command, scratch.path(), 0,
                            {{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", std::to_string(free_port())}})
                          .wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(split(ended.errors, '\n'),
              Contains(IsMessage("lazy: distributed: of 2 ranks the following did not connect within 1.0 s: 1")));
}

// Runs two ranks, the second one with an additional setting.
std::vector<Ended> run_unequal(const std::string& setting) {
  const ScratchFolder scratch;
  const auto command = arguments(scratch, "replicate", {"training.communication_timeout=4"});
  auto other = command;
  other.insert(other.end(), {"--set", setting});
  return Ranks({command, other}, scratch.path()).wait();
}

TEST(RankFaults, ErrorOfOneRank_EndsAllRanks) {
  const auto ended = run_unequal("data.corpus=/nowhere");
  EXPECT_EQ(ended[1].exit_code, 2);
  EXPECT_EQ(ended[0].exit_code, 1);
  for (const Ended& rank : ended)
    EXPECT_THAT(split(rank.errors, '\n'), Contains(Names({"lazy", "rank", 1, "/nowhere"})));
}

TEST(RankFaults, DifferentConfigurations_AreRejected) {
  const auto ended = run_unequal("optimizer.lr=2e-2");
  EXPECT_EQ(ended[1].exit_code, 2);
  EXPECT_THAT(split(ended[1].errors, '\n'), Contains(Names({"rank", 1, "optimizer.lr", "0.02", "0.01"})));
  EXPECT_EQ(ended[0].exit_code, 1);
}

TEST(RankFaults, Torchrun_RestartsTheRun) {
  const std::string python = LAZY_TEST_PYTHON;
  if (std::system((python + " -c 'import torch.distributed.run' >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import torch.distributed.run";
  }
  const ScratchFolder scratch;
  std::string command = fmt::format(
      "{} -m torch.distributed.run --no-python --nproc-per-node 2 --max-restarts 3 --master-port {} {} train", python,
      free_port(), LAZY_BINARY);
  for (const auto& word : arguments(scratch, "zero2", {"training.communication_timeout=4"})) command += " " + word;
  // The second rank of the first attempt is killed by SIGKILL when the run has written its first checkpoint.
  std::ofstream(scratch / "kill.sh") << fmt::format(
      "while [ ! -e {0}/run/checkpoints/step-00000010 ]; do sleep 0.01; done\n"
      "for p in /proc/[0-9]*; do\n"
      "  grep -qsz LAZY_TEST_RUN={0} $p/environ && grep -qszx RANK=1 $p/environ && kill -9 ${{p#/proc/}}\n"
      "done\n",
      scratch.path().string());
  const int status =
      std::system(fmt::format("cd {0}; sh kill.sh & LAZY_TEST_RUN={0} OMP_WAIT_POLICY=passive {1} --resume > out 2>&1; "
                              "s=$?; wait; exit $s",
                              scratch.path().string(), command)
                      .c_str());
  const std::string output = read_file(scratch / "out");
  EXPECT_EQ(status, 0) << output;
  // A resumed run adds an event file; a run that starts from the beginning deletes the old files.
  EXPECT_GE(std::distance(fs::directory_iterator(scratch / "run/tensorboard"), fs::directory_iterator()), 2) << output;
  expect_same_curve(losses(scratch / "run"), one_process());
}

}  // namespace
}  // namespace lazy::train
