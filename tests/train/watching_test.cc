// Tests what a user can observe of a run: statistics of every layer, traces of single steps, and a report that is
// written while the run trains.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <set>

#include "core/file.h"
#include "support/error_of.h"
#include "support/run_command.h"
#include "tiny_run.h"
#include "train/loss_lines.h"
#include "train/trainer.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

TEST(Watching, AttentionStatistics_AreLoggedForEveryLayer) {
  const ScratchFolder scratch;
  train(TrainConfig::load(write_tiny_config(scratch.path()),
                          {"training.steps=4", "validation.every=0", "metrics.attention_every=2"}),
        false);
  const auto log = log_without_times(scratch / "run");
  ASSERT_EQ(log.size(), 4u);
  EXPECT_FALSE(log[0].contains("attention/layer_00/sink_ratio"));
  for (const size_t line : {1u, 3u}) {
    for (const char* measure : {"sink_ratio", "density", "released_mass", "alive_fraction", "tau_mean"}) {
      const auto of = [&](const char* where) {
        return log[line].at(fmt::format("attention/{}{}", where, measure)).get<double>();
      };
      // The value for the model is the mean of its layers, up to the rounding of two doubles.
      EXPECT_NEAR((of("layer_00/") + of("layer_01/")) / 2, of(""), 1e-12) << measure;
    }
    EXPECT_FALSE(log[line].contains("attention/layer_02/sink_ratio"));
  }
  EXPECT_EQ(log[0]["loss_metrics/global_max_loss"], log[0]["loss_metrics/global_avg_loss"]);  // there is only one rank
}

TEST(Watching, LossLines_BecomeRarerInLongRuns) {
  LossLines lines;
  EXPECT_TRUE(lines.due(2));  // the first line is due 2 seconds after the start
  EXPECT_FALSE(lines.due(31));
  EXPECT_TRUE(lines.due(32));
  int count = 0;
  for (double seconds = 33; seconds <= 24 * 3600; ++seconds) count += lines.due(seconds);
  EXPECT_GT(count, 50);
  EXPECT_LT(count, 150);
}

TEST(Watching, Terminal_KeepsLossLines) {
  if (run_command("command -v script").first != 0) GTEST_SKIP() << "script (util-linux) is not installed";
  const ScratchFolder scratch;
  const std::string arguments = write_tiny_config(scratch.path()).string() + " --set training.steps=4";
  const auto on_terminal =
      run_command("cd " + scratch.path().string() + " && TERM=xterm script -qec '" LAZY_BINARY " train " + arguments +
                  "' /dev/null");
  EXPECT_THAT(on_terminal.second, ::testing::ContainsRegex("\x1b\\[K[^\n]*info[^\n]* step 1/4 loss [^\r\n]*\r\n"));
}

TEST(Watching, TraceSteps_WriteTraces) {
  const ScratchFolder scratch;
  const auto train_with = [&](const std::string& trace_steps) {
    return run_lazy(
        {write_tiny_config(scratch.path()).string(), "--set", "training.steps=4", "--set", "validation.every=0",
         "--set", "metrics.attention_every=0", "--set", "metrics.trace_steps=" + trace_steps},
        scratch.path());
  };
  const Ended ended = train_with("[2, 4]");
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, Not(Names({"ERROR"})));  // the profiler must not report a missing GPU as an error
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(scratch / "run/trace")) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"step-00000002.json", "step-00000004.json"}));
  for (const auto& file : files) {
    const Json trace = Json::parse(read_file(scratch / "run/trace" / file));
    int forward = 0, backward = 0, update = 0;
    for (const auto& event : trace.at("traceEvents")) {
      const std::string name = event.value("name", "");
      forward += name == "aten::embedding";
      backward += name.find("Backward") != std::string::npos;
      update += name == "aten::_fused_adamw_";
    }
    EXPECT_EQ(forward, 2);  // one forward pass for each of the two micro-batches
    EXPECT_GT(backward, 10);
    EXPECT_EQ(update, 2);  // one update for each of the two parameter groups
  }
  const auto traced = losses(scratch / "run");
  fs::remove_all(scratch / "run");
  ASSERT_EQ(train_with("[]").exit_code, 0);
  EXPECT_EQ(losses(scratch / "run"), traced);
  EXPECT_FALSE(fs::exists(scratch / "run/trace"));
  fs::remove_all(scratch / "run");
  const Ended refused = train_with("[0]");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, Names({"metrics.trace_steps", 1, 0}));
}

TEST(Watching, Report_WorksDuringTraining) {
  const ScratchFolder scratch;
  const fs::path run = scratch / "run", page = scratch / "page.html";
  const auto report = [&] {
    EXPECT_EQ(std::system(fmt::format("{} report {} --output {} > /dev/null 2> {}", LAZY_BINARY, run.string(),
                                      page.string(), (scratch / "said").string())
                              .c_str()),
              0)
        << read_file(scratch / "said");
    return read_file(scratch / "said");
  };
  Child child({write_tiny_config(scratch.path()).string(), "--set", "training.steps=100000", "--set",
               "checkpoint.every=20", "--set", "metrics.attention_every=5", "--set", "validation.every=10"},
              scratch.path());
  ASSERT_TRUE(child.wait_for_step(run, 21));
  // The report of a stopped run names the option that resumes the run. The report of a running one does not.
  const auto running = AllOf(Names({"run", 100000}), Not(Names({"--resume"})));
  const auto stopped = Names({"run", 100000, (run / "config.toml").string(), "--resume"});
  EXPECT_THAT(report(), running);
  EXPECT_THAT(read_file(page), running);
  for (const char* section : {"<section id=\"curves\">", "<section id=\"layers\">"})
    EXPECT_THAT(read_file(page), HasSubstr(section));
  for (int i = 0; i < 5; ++i) report();  // reports are written while checkpoints are created and removed
  child.send(SIGKILL);
  child.wait();
  std::FILE* log = std::fopen((run / "log.jsonl").c_str(), "a");
  std::fputs("{\"step\":999,\"tok", log);  // simulates a crash during a write
  std::fclose(log);
  EXPECT_THAT(report(), stopped);
  EXPECT_THAT(read_file(page), stopped);
}

}  // namespace
}  // namespace lazy::train
