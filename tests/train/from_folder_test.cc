// Tests training that starts from a model folder, with and without an offset schedule.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "core/file.h"
#include "core/text.h"
#include "data/prepare.h"
#include "model/language_model.h"
#include "ranks.h"
#include "tiny_run.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// A softmax model that was trained for 40 steps, and its conversion. Created once per process.
struct Folders {
  ScratchFolder scratch;
  fs::path softmax = scratch / "run", lazy = scratch / "lazy";
  Folders() {
    const Ended trained = run_lazy({write_tiny_config(scratch.path(), "transformer").string()}, scratch.path());
    EXPECT_EQ(trained.exit_code, 0) << trained.errors;
    const Ended converted = run_lazy({softmax.string(), "--to", "lazy", "--window", "16", "--output", lazy.string()},
                                     scratch.path(), 0, "convert");
    EXPECT_EQ(converted.exit_code, 0) << converted.errors;
  }
};
const Folders& folders() {
  static const Folders made;
  return made;
}

constexpr const char* kShift = "offset_schedule = { from = 0.25, to = -1, steps = 0.5 }";

std::string config_in(const ScratchFolder& scratch, const fs::path& from, const std::string& model_lines = "",
                      const std::string& training_lines = "") {
  const fs::path path = scratch / "tune.toml";
  std::string text = read_file(write_tiny_config(scratch.path()));
  text.erase(0, text.find("[data]"));
  const std::string training = "[training]\n";
  text.insert(text.find(training) + training.size(), training_lines);
  std::ofstream(path) << "[model]\nfrom = \"" << from.string() << "\"\n" << model_lines << "\n" << text;
  return path.string();
}

double mean_tau(const fs::path& folder) {
  const LanguageModel model = LanguageModel::load(folder);
  at::Tensor sum = at::zeros({});
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer) sum = sum + model.tau(layer).detach().mean();
  return sum.item<double>() / static_cast<double>(model.config().num_layers);
}

double first_loss(const fs::path& run) { return losses(run).front(); }

TEST(FromFolder, FirstLoss_EqualsLossOfFolderModel) {
  const ScratchFolder again, tuned, lazy, random;
  // The learning rate of the first step is 0. The loss of the first step is therefore the loss of the model in the
  // folder.
  const auto first = [](const ScratchFolder& scratch, const fs::path& from) {
    const Ended ended = run_lazy({config_in(scratch, from), "--set", "training.steps=5"}, scratch.path());
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return first_loss(scratch / "run");
  };
  const double softmax = first(tuned, folders().softmax);
  EXPECT_LT(softmax, losses(folders().softmax)[0] - 0.5);
  EXPECT_NEAR(first(lazy, folders().lazy), softmax, 1e-5);
  EXPECT_EQ(first(again, folders().softmax / "model"), softmax);  // a run folder is accepted as a model folder
}

TEST(FromFolder, Training_KeepsFolderConfiguration) {
  const ScratchFolder source, scratch;
  fs::copy(folders().lazy, source / "model", fs::copy_options::recursive);
  std::ofstream(source / "model/chat_template.jinja") << "{{ messages }}";
  auto config = nlohmann::ordered_json::parse(read_file(source / "model/config.json"));
  config["max_position_embeddings"] = 4096;
  config["task_specific_params"] = {{"a", 1}};
  std::ofstream(source / "model/config.json") << config.dump();
  const Ended ended = run_lazy({config_in(scratch, source / "model"), "--set", "training.steps=5"}, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  const auto written = nlohmann::ordered_json::parse(read_file(scratch / "run/model/config.json"));
  // the value of the folder is kept, although training.seq_len differs
  EXPECT_EQ(written["max_position_embeddings"], 4096);
  EXPECT_EQ(written["model_type"], "lazy_llama");
  EXPECT_EQ(written["task_specific_params"], config["task_specific_params"]);
  EXPECT_EQ(read_file(scratch / "run/model/chat_template.jinja"), "{{ messages }}");
}

TEST(FromFolder, Offsets_FollowSchedule) {
  const ScratchFolder shifted, learned;
  ASSERT_EQ(run_lazy({config_in(shifted, folders().lazy, kShift), "--set", "checkpoint.keep_last=0"}, shifted.path())
                .exit_code,
            0);
  ASSERT_EQ(run_lazy({config_in(learned, folders().lazy)}, learned.path()).exit_code, 0);
  EXPECT_NEAR(mean_tau(shifted / "run/model"), -1, 0.2);  // the optimizer adds at most 1e-2 per step
  EXPECT_GT(std::abs(mean_tau(shifted / "run/model") + 1), 1e-4);
  EXPECT_NEAR(mean_tau(learned / "run/model"), 0, 0.2);
  // this checkpoint is from the middle of the schedule
  EXPECT_NEAR(mean_tau(shifted / "run/checkpoints/step-00000010"), -0.375, 0.1);
}

const std::vector<std::string> kFiles{"model.safetensors", "config.json", "tokenizer_config.json"};

TEST(FromFolder, KilledRun_ResumesWithinSchedule) {
  const ScratchFolder whole, killed;
  ASSERT_EQ(run_lazy({config_in(whole, folders().lazy, kShift)}, whole.path()).exit_code, 0);
  const std::string config = config_in(killed, folders().lazy, kShift);
  {
    Child child({config}, killed.path());
    ASSERT_TRUE(child.wait_for_step(killed / "run", 13));
    while (!fs::exists(killed / "run/checkpoints/step-00000010"))  // the checkpoint may still be being written
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    child.send(SIGKILL);
    EXPECT_EQ(child.wait().signal, SIGKILL);
  }
  const auto saved = CheckpointStore(killed / "run/checkpoints", 0).steps();
  ASSERT_TRUE(!saved.empty() && saved.back() < 20);
  const Ended resumed = run_lazy({config, "--resume"}, killed.path());
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_TRUE(same_files(killed / "run/model", whole / "run/model", kFiles));
  EXPECT_TRUE(same_files(killed / "run/checkpoints/step-00000040", whole / "run/checkpoints/step-00000040",
                         {"model.safetensors", "optimizer.safetensors"}));
}

// Both ranks are killed in the middle of the schedule, between two checkpoints.
TEST(FromFolder, KilledRanks_ResumeWithinSchedule) {
  const auto arguments = [](const ScratchFolder& scratch) {
    return std::vector<std::string>{config_in(scratch, folders().lazy, kShift, "data_parallel = \"zero2\"\n"),
                                    "--threads",
                                    "1",
                                    "--set",
                                    "training.gradient_accumulation_steps=1",
                                    "--resume"};
  };
  const ScratchFolder whole, killed;
  for (const Ended& ended : run_ranks(2, arguments(whole), whole.path())) ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  {
    Ranks ranks(2, arguments(killed), killed.path());
    ASSERT_TRUE(ranks[0].wait_for_step(killed / "run", 13));
    while (!fs::exists(killed / "run/checkpoints/step-00000010"))  // the checkpoint may still be being written
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const int rank : {1, 0}) ranks[rank].send(SIGKILL);
    for (const Ended& ended : ranks.wait()) EXPECT_EQ(ended.signal, SIGKILL) << ended.errors;
  }
  ASSERT_EQ(CheckpointStore(killed / "run/checkpoints", 0).steps(), std::vector<int64_t>{10});
  for (const Ended& ended : run_ranks(2, arguments(killed), killed.path()))
    ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_TRUE(same_files(killed / "run/model", whole / "run/model", kFiles));
  EXPECT_TRUE(same_files(
      killed / "run/checkpoints/step-00000040", whole / "run/checkpoints/step-00000040",
      {"model.safetensors", "optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"}));
}

TEST(FromFolder, EverySharding_TrainsTheSameModel) {
  const auto train = [](const ScratchFolder& scratch, const std::string& sharding) {
    const std::string lines = "data_parallel = \"" + sharding + "\"\ndtype = \"fp32\"\n";
    for (const Ended& ended : run_ranks(2,
                                        {config_in(scratch, folders().lazy, kShift, lines), "--threads", "1", "--set",
                                         "training.max_norm=0", "--set", "training.gradient_accumulation_steps=1"},
                                        scratch.path())) {
      ASSERT_EQ(ended.exit_code, 0) << ended.errors;
    }
  };
  const ScratchFolder replicate;
  train(replicate, "replicate");
  for (const char* sharding : {"zero2", "full_shard"}) {
    const ScratchFolder scratch;
    train(scratch, sharding);
    EXPECT_TRUE(same_files(scratch / "run/model", replicate / "run/model", kFiles)) << sharding;
  }
}

TEST(FromFolder, Init_WritesConfigurationThatContinuesTraining) {
  const ScratchFolder scratch;
  const auto init = [&](const fs::path& from, const std::string& name) {
    const Ended ended = run_lazy({tiny_corpus().string(), "--from", from.string(), "--output",
                                  (scratch / name).string(), "--minutes", "0.05", "--device", "cpu"},
                                 scratch.path(), 0, "init");
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return read_file(scratch / name);
  };
  EXPECT_THAT(init(folders().lazy, "lazy.toml"), HasSubstr("offset_schedule"));
  const Ended trained = run_lazy({(scratch / "lazy.toml").string()}, scratch.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  EXPECT_NEAR(mean_tau(scratch / "runs/lazy/model"), -1, 0.2);
  // A model whose offsets have already been shifted is not shifted again.
  EXPECT_THAT(init(scratch / "runs/lazy", "again.toml"), Not(HasSubstr("offset_schedule")));
  EXPECT_THAT(init(folders().softmax, "softmax.toml"), Not(HasSubstr("offset_schedule")));
}

TEST(FromFolder, OtherCommands_ReadTheSameModel) {
  const ScratchFolder scratch;
  const Ended info = run_lazy({config_in(scratch, folders().lazy, kShift), "--json"}, scratch.path(), 0, "info");
  ASSERT_EQ(info.exit_code, 0) << info.errors;
  const auto shown = nlohmann::ordered_json::parse(info.output);
  EXPECT_EQ(shown["config"]["model_type"], "lazy_llama");
  EXPECT_EQ(shown["config"]["hidden_size"], 64);
}

TEST(FromFolder, InvalidInput_ErrorNamesIt) {
  const ScratchFolder scratch;
  const auto error = [&](const fs::path& from, const std::string& lines, const std::string& setting = "") {
    std::vector<std::string> arguments{config_in(scratch, from, lines)};
    if (!setting.empty()) arguments.insert(arguments.end(), {"--set", setting});
    const Ended ended = run_lazy(arguments, scratch.path());
    EXPECT_EQ(ended.exit_code, 2) << ended.errors;
    return last_line(ended.errors);
  };
  EXPECT_THAT(error(folders().lazy, "hidden_size = 64"), HasSubstr("model.hidden_size"));
  EXPECT_THAT(error(folders().lazy, "[mixer]\nheads = 2"), HasSubstr("mixer.heads"));
  EXPECT_THAT(error(scratch / "nothing", ""), HasSubstr((scratch / "nothing").string()));
  EXPECT_THAT(error(folders().softmax, kShift), HasSubstr("offset_schedule"));
  EXPECT_THAT(error(folders().lazy, "", "training.seq_len=100000"), HasSubstr("training.seq_len"));
  PrepareOptions options;
  options.inputs = {(tiny_corpus().parent_path() / "text.jsonl").string()};
  options.output = scratch / "corpus";
  options.train_pieces = 300;
  options.validation = 0.1;
  prepare_corpus(options);
  const Ended other = run_lazy(
      {config_in(scratch, folders().lazy), "--set", "data.corpus=" + (scratch / "corpus").string()}, scratch.path());
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(last_line(other.errors), HasSubstr("--tokenizer " + folders().lazy.string()));
}

}  // namespace
}  // namespace lazy::train
