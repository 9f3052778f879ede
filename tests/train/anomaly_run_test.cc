// Tests how training handles a loss that is not finite, a spike of the loss, a full disk and a signal, and that it
// loses no data. The program has no hook that injects such faults. The tests therefore modify a checkpoint (the
// optimizer moment of a letter that occurs in a single document becomes NaN, or a weight becomes far too large) or
// replace one document by noise.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/file.h"
#include "core/random.h"
#include "core/text.h"
#include "data/prepare.h"
#include "data/sequences.h"
#include "data/tokenizer.h"
#include "model/safetensors.h"
#include "ranks.h"
#include "support/error_of.h"
#include "support/tiny_corpus.h"
#include "tiny_run.h"
#include "train/checkpoint.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::Contains;
using Json = nlohmann::ordered_json;

// index of the unusual document, which is the only one with the letter Z or consists of noise
constexpr int kRare = 43;

// Writes a corpus of documents that consist of words, except for document 43, whose text is `rare`. Documents are read
// in order, and training reads document 43 at about step 25.
fs::path corpus_with(const fs::path& folder, const std::string& rare) {
  Random random(7);
  std::ofstream text(folder / "text.jsonl");
  for (int document = 0; document < 160; ++document) {
    const std::string line = sixty_words(random);
    text << Json{{"text", document == kRare ? rare : line}}.dump() << "\n";
  }
  text.close();
  PrepareOptions options;
  options.inputs = {(folder / "text.jsonl").string()};
  options.output = folder / "corpus";
  options.tokenizer = "bytes";
  prepare_corpus(options);
  return folder / "corpus";
}

std::string noise(int length) {
  Random random(3);
  std::string text;
  for (int i = 0; i < length; ++i) text += static_cast<char>('!' + random.below(94));
  return text;
}

struct Place {
  ScratchFolder scratch;
  std::vector<std::string> arguments;
  fs::path run = scratch / "run";

  explicit Place(const std::string& rare = "where is Z now") {
    const fs::path corpus = corpus_with(scratch.path(), rare);
    arguments = {write_tiny_config(scratch.path(), "lazy", "").string(), "--resume"};
    for (const std::string& set :
         {"data.corpus=" + corpus.string(), std::string("data.shuffle=false"), std::string("validation.every=0"),
          std::string("metrics.attention_every=0"), std::string("model.tie_word_embeddings=false")}) {
      arguments.insert(arguments.end(), {"--set", set});
    }
  }
  Ended train(const std::vector<std::string>& settings) const { return run_lazy(with(settings), scratch.path()); }
  std::vector<std::string> with(const std::vector<std::string>& settings) const {
    auto all = arguments;
    for (const auto& set : settings) all.insert(all.end(), {"--set", set});
    return all;
  }
};

// Rewrites the checkpoint of `step`, with valid checksums, after setting one row of a tensor to `value`.
void spoil(const fs::path& run, int64_t step, const std::string& file, const std::string& name, int64_t row,
           double value) {
  CheckpointStore store(run / "checkpoints", 0);
  const fs::path from = run / "former";
  const TrainState state = verify_checkpoint(store.path(step));
  fs::rename(store.path(step), from);
  store.save(state, [&](const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().filename() != "state.json") fs::copy(entry.path(), folder / entry.path().filename());
    }
    auto tensors = read_safetensors(folder / file);
    tensors.at(name)[row].fill_(value);
    write_safetensors(folder / file, NamedTensors(tensors.begin(), tensors.end()));
  });
  fs::remove_all(from);
}

int64_t id_of(char letter) { return load_tokenizer("bytes")->encode(std::string(1, letter)).at(0); }

// Checks that the log has one line per step in ascending order. Returns the steps whose loss is null.
std::vector<int64_t> steps_without_loss(const fs::path& run, int64_t expected) {
  std::vector<int64_t> out;
  const auto log = log_without_times(run);
  EXPECT_EQ(log.size(), static_cast<size_t>(expected));
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i]["step"], i + 1);
    if (log[i]["loss_metrics/global_avg_loss"].is_null()) out.push_back(static_cast<int64_t>(i) + 1);
  }
  return out;
}

TrainState state_at(const fs::path& run, int64_t step) {
  return verify_checkpoint(CheckpointStore(run / "checkpoints", 0).path(step));
}

// Trains 20 steps and then sets the optimizer moment of the embedding of the letter Z to NaN in the checkpoint. The
// next update makes the embedding NaN, and then the loss of every text with this letter is NaN.
void train_and_spoil(const Place& place) {
  const Ended first = place.train({"training.steps=20", "lr_scheduler.warmup_steps=4"});
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  fs::remove_all(place.run / "model");
  spoil(place.run, 20, "optimizer.safetensors", "exp_avg.model.embeddings.weight", id_of('Z'), std::nan(""));
}

// Sets a weight in the checkpoint so large that a logit overflows in every step.
void make_useless(const Place& place, int64_t step) {
  spoil(place.run, step, "model.safetensors", "lm_head.weight", id_of('Z'), 3e38);
}

TEST(Faults, NanLoss_IsSkippedAndTrainingContinues) {
  const Place place;
  train_and_spoil(place);
  const fs::path saved = place.scratch / "saved";
  fs::copy(place.run, saved, fs::copy_options::recursive);
  const std::vector<std::string> settings{"training.on_nan=skip", "checkpoint.every=20"};
  const Ended ended = place.train(settings);
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  const auto skipped = steps_without_loss(place.run, 40);
  ASSERT_GE(skipped.size(), 1u);
  ASSERT_LE(skipped.size(), 2u);
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({skipped.front(), "nan"})));
  EXPECT_GT(skipped[0], 20);
  EXPECT_EQ(state_at(place.run, 40).anomalies.skipped, static_cast<int64_t>(skipped.size()));
  EXPECT_EQ(state_at(place.run, 40).sequences, 40 * 8);  // a skipped step also advances the position in the data
  EXPECT_EQ(log_without_times(place.run).back()["faults/skipped"], skipped.size());

  // A run that is killed after the skipped step and then resumed must produce the same bytes.
  fs::rename(place.run, place.scratch / "straight");
  fs::rename(saved, place.run);
  {
    Child child(place.with(settings), place.scratch.path());
    ASSERT_TRUE(child.wait_for_step(place.run, skipped.back() + 2));
    child.send(SIGKILL);
    child.wait();
  }
  ASSERT_EQ(place.train(settings).exit_code, 0);
  EXPECT_EQ(log_without_times(place.run), log_without_times(place.scratch / "straight"));
  EXPECT_TRUE(same_files(place.run / "model", place.scratch / "straight/model", {"model.safetensors"}));
}

TEST(Faults, NanLoss_RollsBackAndSkipsData) {
  const Place place;
  train_and_spoil(place);
  const Ended ended = place.train({"training.on_nan=roll_back"});
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, Names({"nan"}));
  EXPECT_TRUE(steps_without_loss(place.run, 40).empty());
  const TrainState end = state_at(place.run, 40);
  EXPECT_GE(end.anomalies.rolled_back, 1);
  EXPECT_GT(end.sequences, 40 * 8);
  EXPECT_EQ(end.sequences % 8, 0);
  EXPECT_EQ(log_without_times(place.run).back()["faults/rolled_back"], end.anomalies.rolled_back);
}

// With full sharding, each rank has only a part of the weights in memory. To roll back, rank 0 reads all of them from
// the checkpoint.
TEST(Faults, NanLossUnderFullSharding_RollsBack) {
  const Place place;
  train_and_spoil(place);
  for (const Ended& ended : run_ranks(2,
                                      place.with({"training.on_nan=roll_back", "training.data_parallel=full_shard",
                                                  "training.gradient_accumulation_steps=1"}),
                                      place.scratch.path())) {
    ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  }
  EXPECT_EQ(state_at(place.run, 40).anomalies.rolled_back, 1);
  EXPECT_GT(state_at(place.run, 40).sequences, 40 * 8);
  std::vector<double> finite;
  for (const Json& line : log_without_times(place.run))
    finite.push_back(line["loss_metrics/global_avg_loss"].get<double>());
  EXPECT_EQ(finite.size(), 40u);
}

TEST(Faults, KilledAfterRollBack_KeepsRollBackCounter) {
  const Place place;
  train_and_spoil(place);
  const std::vector<std::string> settings{"training.on_nan=roll_back", "training.steps=60", "checkpoint.every=0"};
  {
    Child child(place.with(settings), place.scratch.path());
    while (child.wait_for_step(place.run, 21) && state_at(place.run, 20).anomalies.rolled_back == 0) ::usleep(1000);
    child.send(SIGKILL);
    ASSERT_EQ(child.wait().signal, SIGKILL);
  }
  const TrainState kept = state_at(place.run, 20);
  ASSERT_EQ(kept.anomalies.rolled_back, 1);
  EXPECT_GT(kept.sequences, 20 * 8);
  const Ended ended = place.train(settings);
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_TRUE(steps_without_loss(place.run, 60).empty());
}

TEST(Faults, BadCheckpoint_IsNotUsedForRollBack) {
  const Place place;
  ASSERT_EQ(place.train({"training.steps=20"}).exit_code, 0);
  fs::remove_all(place.run / "model");
  make_useless(place, 20);
  const Ended ended = place.train({"training.on_nan=roll_back"});
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, Names({"damaged-step-00000020"}));
  EXPECT_TRUE(fs::exists(place.run / "checkpoints/damaged-step-00000020"));
  EXPECT_TRUE(steps_without_loss(place.run, 40).empty());
  // The run reads the sequences of 11 additional steps: after the rollback to step 10, it repeats steps 11 to 20 and
  // the failed step 21 with other sequences.
  EXPECT_EQ(state_at(place.run, 40).sequences, 40 * 8 + 11 * 8);
}

TEST(Faults, NonFiniteWeights_AreNotResumedFrom) {
  const Place place;
  ASSERT_EQ(place.train({}).exit_code, 0);
  const auto spoil_weights = [&](int64_t step) {
    spoil(place.run, step, "model.safetensors", "lm_head.weight", 5, std::nan(""));
  };
  fs::rename(place.run / "model", place.scratch / "straight");
  const auto curve = losses(place.run);
  spoil_weights(40);
  const Ended ended = place.train({});
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({"damaged-step-00000040", "lm_head.weight"})));
  EXPECT_THAT(split(ended.errors, '\n'), Contains(Names({place.run.string(), 30, 40})));
  EXPECT_EQ(losses(place.run), curve);
  EXPECT_TRUE(same_files(place.run / "model", place.scratch / "straight", {"model.safetensors"}));

  spoil_weights(30);
  spoil_weights(40);
  const Ended none = place.train({"training.steps=50"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(last_line(none.errors), Names({"checkpoint", "lm_head.weight", "--resume"}));
}

TEST(Faults, Policies_StopAtTheirLimits) {
  const Place place;
  ASSERT_EQ(place.train({"training.steps=10"}).exit_code, 0);
  fs::remove_all(place.run / "model");
  make_useless(place, 10);
  const Ended skips = place.train({"training.on_nan=skip", "training.max_skips=3"});
  EXPECT_EQ(skips.exit_code, 1);
  EXPECT_THAT(last_line(skips.errors), Names({14, 3, "training.max_skips", 10}));  // steps 11 to 13 were skipped
  const Ended backs = place.train({"training.on_nan=roll_back", "training.max_roll_backs=2"});
  EXPECT_EQ(backs.exit_code, 1);
  EXPECT_THAT(last_line(backs.errors), Names({11, 2, "training.max_roll_backs"}));
  EXPECT_EQ(state_at(place.run, 10).anomalies.rolled_back, 2);
  // With the default settings, training stops at the first loss that is not finite.
  EXPECT_THAT(last_line(place.train({}).errors), Names({"train", 11, 10}));
}

TEST(Faults, Spike_IsSkippedOrRolledBack) {
  const Place place(noise(700));
  const std::vector<std::string> spikes{"training.spike_factor=4", "training.spike_window=8"};
  const Ended plain = place.train({});
  ASSERT_EQ(plain.exit_code, 0);
  const auto curve = losses(place.run);
  const auto worst = static_cast<int64_t>(std::max_element(curve.begin() + 15, curve.end()) - curve.begin()) + 1;
  fs::rename(place.run, place.scratch / "plain");

  auto settings = spikes;
  settings.push_back("training.on_spike=stop");
  const Ended stopped = place.train(settings);
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(last_line(stopped.errors), Names({"train", 8}));
  fs::remove_all(place.run);

  settings.back() = "training.on_spike=skip";
  const Ended skipped = place.train(settings);
  ASSERT_EQ(skipped.exit_code, 0) << skipped.errors;
  EXPECT_THAT(split(skipped.errors, '\n'), Contains(Names({worst, 8})));
  EXPECT_GE(state_at(place.run, 40).anomalies.skipped, 1);
  EXPECT_LE(losses(place.run).back(), curve.back() * 1.1);
  fs::rename(place.run, place.scratch / "skipped");

  settings.back() = "training.on_spike=roll_back";
  const Ended back = place.train(settings);
  ASSERT_EQ(back.exit_code, 0) << back.errors;
  EXPECT_GE(state_at(place.run, 40).anomalies.rolled_back, 1);
  EXPECT_FALSE(fs::exists(place.run / "checkpoints/damaged-step-00000020"))
      << "the checkpoint must not be marked as damaged, because steps after it had succeeded";
  const auto after = losses(place.run);
  ASSERT_EQ(after.size(), 40u);
  EXPECT_LT(*std::max_element(after.begin() + 20, after.end()),
            curve[static_cast<size_t>(worst) - 1]);  // after the rollback, the document of noise is skipped
}

// The log is on a small file system in memory (tmpfs), which becomes full. After space is freed, the run continues.
TEST(Faults, FullDiskOfLog_StopsAndResumes) {
  if (std::system("unshare -rm true 2>/dev/null") != 0)
    GTEST_SKIP() << "unshare -rm (a private mount namespace) is not allowed here";
  for (const char* tensorboard : {"false", "true"}) {
    const ScratchFolder scratch, straight;
    const auto settings = [&](const ScratchFolder& folder) {
      return fmt::format("{} --set checkpoint.every=20 --set metrics.tensorboard={}",
                         write_tiny_config(folder.path()).string(), tensorboard);
    };
    std::ofstream(scratch / "script") << fmt::format(R"(set -e
mkdir -p run && mount -t tmpfs -o size=16m tmpfs run
export OMP_WAIT_POLICY=passive
{0} train {1} 2> first
rm -r run/model run/checkpoints/step-00000040
head -n 20 run/log.jsonl > lines
cp lines run/log.jsonl
{0} train {1} --resume > /dev/null 2> second &
while ! grep -q '"step":22,' run/log.jsonl; do :; done
dd if=/dev/zero of=run/filler bs=4096 2> /dev/null || true
code=0; wait $! || code=$?
echo $code > code
cp run/log.jsonl full.jsonl
ls -A run/checkpoints > left
rm run/filler
{0} train {1} --resume 2> third
cp -r run/log.jsonl run/model run/tensorboard . 2> /dev/null || true
)",
                                                     LAZY_BINARY, settings(scratch));
    const std::string command = fmt::format("cd {} && unshare -rm sh ./script > output 2>&1", scratch.path().string());
    ASSERT_EQ(std::system(command.c_str()), 0) << read_file(scratch / "output") << read_file(scratch / "third");
    EXPECT_EQ(read_file(scratch / "code"), "1\n");
    EXPECT_THAT(last_line(read_file(scratch / "second")), Names({std::string(std::strerror(ENOSPC))}));
    EXPECT_EQ(read_file(scratch / "left"), "step-00000020\n");
    const std::string log = read_file(scratch / "full.jsonl");
    ASSERT_FALSE(log.empty());
    EXPECT_EQ(log.back(), '\n');
    int64_t steps = 0;
    for (const auto& line : split(log, '\n')) {  // no line may be incomplete
      if (line.empty()) continue;
      EXPECT_EQ(Json::parse(line)["step"], ++steps);
    }
    EXPECT_GE(steps, 22);
    EXPECT_LT(steps, 40);
    ASSERT_EQ(
        std::system(fmt::format("OMP_WAIT_POLICY=passive {} train {} > /dev/null 2>&1", LAZY_BINARY, settings(straight))
                        .c_str()),
        0);
    EXPECT_EQ(log_without_times(scratch.path()), log_without_times(straight / "run"));
    EXPECT_TRUE(same_files(scratch / "model", straight / "run/model", {"model.safetensors"}));
  }
}

// Checkpoints are written so often that a write is in progress at almost any time.
TEST(Faults, SignalDuringCheckpointWrite_KeepsCheckpointsValid) {
  const ScratchFolder straight;
  const auto arguments = [](const ScratchFolder& scratch) {
    return std::vector<std::string>{write_tiny_config(scratch.path()).string(),
                                    "--resume",
                                    "--set",
                                    "checkpoint.every=1",
                                    "--set",
                                    "validation.every=0"};
  };
  ASSERT_EQ(run_lazy(arguments(straight), straight.path()).exit_code, 0);
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const ScratchFolder scratch;
    {
      Child child(arguments(scratch), scratch.path());
      ASSERT_TRUE(child.wait_for_step(scratch / "run", 9));
      child.send(signal);
      const Ended ended = child.wait();
      EXPECT_EQ(ended.exit_code, 128 + signal);
      EXPECT_THAT(last_line(ended.errors), Names({std::string(signal == SIGTERM ? "SIGTERM" : "SIGUSR1"), 40}));
    }
    const auto log = log_without_times(scratch / "run");
    CheckpointStore store(scratch / "run/checkpoints", 0);
    EXPECT_EQ(store.steps().back(), log.back()["step"]);  // the last logged step must have been saved
    EXPECT_EQ(store.newest_valid()->state.step, log.back()["step"]);
    for (const auto& entry : fs::directory_iterator(scratch / "run/checkpoints")) {
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
    }
    ASSERT_EQ(run_lazy(arguments(scratch), scratch.path()).exit_code, 0);
    EXPECT_EQ(log_without_times(scratch / "run"), log_without_times(straight / "run"));
    EXPECT_TRUE(same_files(scratch / "run/model", straight / "run/model", {"model.safetensors"}));
  }
}

}  // namespace
}  // namespace lazy::train
