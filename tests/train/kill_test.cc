// Kills a training run with SIGKILL at random times. Each resumed run must produce the same bytes as an uninterrupted
// run. LAZY_KILL_ROUNDS sets the number of kills (default 20); LAZY_KILL_SEED selects different times.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "core/random.h"
#include "ranks.h"
#include "support/error_of.h"
#include "tiny_run.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

int64_t environment(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoll(value) : fallback;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Checkpoints are written so often that many kills interrupt a write.
std::vector<std::string> kill_arguments(const ScratchFolder& scratch) {
  return {write_tiny_config(scratch.path(), "lazy", "").string(),
          "--threads",
          "1",
          "--set",
          "training.steps=12",
          "--set",
          "checkpoint.every=2",
          "--set",
          "validation.every=4",
          "--set",
          "training.batch_size=2",
          "--resume"};
}

TEST(Kill, RandomKills_ResumeToTheSameBytes) {
  const int64_t rounds = environment("LAZY_KILL_ROUNDS", 20), seed = environment("LAZY_KILL_SEED", 1);
  fmt::print("LAZY_KILL_ROUNDS={} LAZY_KILL_SEED={}\n", rounds, seed);
  Random random(static_cast<uint64_t>(seed));
  tiny_corpus();
  const ScratchFolder straight;
  const auto begin = Clock::now();
  const Ended ended = run_lazy(kill_arguments(straight), straight.path());
  double duration = seconds_since(begin);
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;

  int64_t killed = 0, late = 0, saved = 0;
  while (killed < rounds) {
    const ScratchFolder scratch;
    // Kills the run after a random time and resumes it, once or several times.
    for (bool again = true; again && killed < rounds; again = random.below(3) == 0) {
      Child child(kill_arguments(scratch), scratch.path());
      std::this_thread::sleep_for(std::chrono::duration<double>(duration * random.uniform()));
      child.send(SIGKILL);
      const Ended end = child.wait();
      if (end.signal == SIGKILL) {
        ++killed;
        continue;
      }
      // The run may end before it is killed if it is faster than the uninterrupted run, whose duration limits the
      // random time.
      ASSERT_EQ(end.exit_code, 0) << end.errors;
      ASSERT_LT(++late, rounds + 10) << "the runs end before they can be killed";
      duration *= 0.9;
    }
    const fs::path checkpoints = scratch / "run/checkpoints";
    saved += fs::exists(checkpoints) && !fs::is_empty(checkpoints);
    const Ended last = run_lazy(kill_arguments(scratch), scratch.path());
    ASSERT_EQ(last.exit_code, 0) << "after " << killed << " kills: " << last.errors;
    ASSERT_EQ(log_without_times(scratch / "run"), log_without_times(straight / "run"))
        << "after " << killed << " kills";
    ASSERT_TRUE(same_files(scratch / "run/checkpoints/step-00000012", straight / "run/checkpoints/step-00000012",
                           {"model.safetensors", "optimizer.safetensors", "config.json"}));
    ASSERT_TRUE(same_files(scratch / "run/model", straight / "run/model", {"model.safetensors", "config.json"}));
    for (const auto& entry : fs::directory_iterator(checkpoints)) {  // no incomplete file may remain
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-") && entry.path().extension().empty())
          << entry.path();
    }
  }
  fmt::print("{} kills; {} runs had a checkpoint at that time; {} runs ended before the kill\n", killed, saved, late);
  EXPECT_GT(saved, 0) << "every kill came before the first checkpoint";
}

// The same test with two ranks. One rank is killed; the other rank must detect this and exit. Then both ranks are
// restarted.
TEST(Kill, RandomKillsOfRanks_ResumeToTheSameBytes) {
  const int64_t rounds = environment("LAZY_KILL_ROUNDS", 20), seed = environment("LAZY_KILL_SEED", 1);
  fmt::print("LAZY_KILL_ROUNDS={} LAZY_KILL_SEED={}\n", rounds, seed);
  Random random(static_cast<uint64_t>(seed) + 1000);
  tiny_corpus();
  // timeout: communication timeout in seconds. It is short if a rank will be killed, so that the other ranks soon
  // detect this.
  const auto command = [](const ScratchFolder& scratch, const char* timeout = "60") {
    auto words = kill_arguments(scratch);
    words.insert(words.end(), {"--set", "training.data_parallel=zero2", "--set",
                               fmt::format("training.communication_timeout={}", timeout)});
    return words;
  };
  const ScratchFolder straight;
  const auto begin = Clock::now();
  for (const Ended& ended : run_ranks(2, command(straight), straight.path()))
    ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  double duration = seconds_since(begin);

  int64_t killed = 0, late = 0, saved = 0;
  double slowest = 0;
  while (killed < rounds) {
    const ScratchFolder scratch;
    for (bool again = true; again && killed < rounds; again = random.below(4) != 0) {
      Ranks ranks(2, command(scratch, "1"), scratch.path());
      const int victim = static_cast<int>(random.below(2));
      std::this_thread::sleep_for(std::chrono::duration<double>(duration * random.uniform()));
      ranks[victim].send(SIGKILL);
      const auto sent = Clock::now();
      const Ended end = ranks[victim].wait(), other = ranks[1 - victim].wait();
      if (end.signal == SIGKILL) {
        ++killed;
        slowest = std::max(slowest, seconds_since(sent));
        // exit code 0: the rank had already finished when the other rank was killed
        ASSERT_TRUE(other.exit_code == 1 || other.exit_code == 0)
            << other.exit_code << " " << other.signal << other.errors;
        continue;
      }
      // On a busy machine, a rank may start so late that the short communication timeout expires.
      const bool slow = end.exit_code == 1 && names_token(end.errors, "distributed");
      ASSERT_TRUE(end.exit_code == 0 || slow) << end.errors;
      ASSERT_LT(++late, rounds + 10) << "the runs end before they can be killed";
      if (!slow) duration *= 0.9;
    }
    const fs::path checkpoints = scratch / "run/checkpoints";
    saved += fs::exists(checkpoints) && !fs::is_empty(checkpoints);
    for (const Ended& ended : run_ranks(2, command(scratch), scratch.path())) {
      ASSERT_EQ(ended.exit_code, 0) << "after " << killed << " kills: " << ended.errors;
    }
    const auto without_communication = [](std::vector<nlohmann::ordered_json> lines) {
      for (auto& line : lines) line.erase("time_metrics/communication(s)");
      return lines;
    };
    ASSERT_EQ(without_communication(log_without_times(scratch / "run")),
              without_communication(log_without_times(straight / "run")))
        << "after " << killed << " kills";
    ASSERT_TRUE(same_files(scratch / "run/checkpoints/step-00000012", straight / "run/checkpoints/step-00000012",
                           {"model.safetensors", "optimizer-00001-of-00002.safetensors",
                            "optimizer-00002-of-00002.safetensors", "config.json"}));
    ASSERT_TRUE(same_files(scratch / "run/model", straight / "run/model", {"model.safetensors", "config.json"}));
    for (const auto& entry : fs::directory_iterator(checkpoints)) {  // no incomplete file may remain
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-") && entry.path().extension().empty())
          << entry.path();
    }
  }
  fmt::print(
      "{} kills; {} runs had a checkpoint at that time; {} runs ended before the kill; the other rank terminated after "
      "at most {:.1f} s\n",
      killed, saved, late, slowest);
  EXPECT_GT(saved, 0) << "every kill came before the first checkpoint";
}

}  // namespace
}  // namespace lazy::train
