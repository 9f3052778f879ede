// Tests the section [checkpoint] of a configuration: background writes, which checkpoints are kept, and which models
// are exported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "model/language_model.h"
#include "tiny_run.h"
#include "train/checkpoint.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;

void train_with(const ScratchFolder& scratch, const std::vector<std::string>& settings) {
  auto all = settings;
  all.insert(all.end(), {"training.steps=12", "checkpoint.every=2", "validation.every=0", "training.dtype=bf16"});
  std::vector<std::string> arguments{write_tiny_config(scratch.path()).string()};
  for (const auto& set : all) arguments.insert(arguments.end(), {"--set", set});
  const Ended ended = run_lazy(arguments, scratch.path());
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
}

TEST(Saving, BackgroundSave_WritesTheSameBytes) {
  const ScratchFolder background, foreground;
  train_with(background, {"checkpoint.keep_last=0", "checkpoint.export=every"});
  train_with(foreground, {"checkpoint.keep_last=0", "checkpoint.export=every", "checkpoint.async=false"});
  EXPECT_EQ(log_without_times(background / "run"), log_without_times(foreground / "run"));
  int compared = 0;
  for (const auto& entry : fs::recursive_directory_iterator(foreground / "run")) {
    const std::string name = fs::relative(entry.path(), foreground / "run").string();
    if (!entry.is_regular_file() || name.starts_with("tensorboard") || name == "config.toml" || name == "run.json" ||
        name == "log.jsonl")
      continue;
    ++compared;
    if (entry.path().filename() != "state.json") {
      EXPECT_TRUE(same_files(background / "run", foreground / "run", {name}));
      continue;
    }
    auto a = nlohmann::ordered_json::parse(read_file(background / "run" / name)),
         b = nlohmann::ordered_json::parse(read_file(foreground / "run" / name));
    for (auto* json : {&a, &b}) json->erase("seconds"), json->erase("checksum");
    EXPECT_EQ(a, b);
  }
  EXPECT_GT(compared, 6 * 5 + 6 * 4);
}

TEST(Saving, CheckpointTimes_AreLogged) {
  const ScratchFolder scratch;
  train_with(scratch, {"checkpoint.async=false"});
  int blocked = 0, written = 0;
  std::string log = read_file(scratch / "run/log.jsonl");
  for (size_t at = 0; (at = log.find("\"checkpoint/blocked(s)\"", at)) != std::string::npos; ++at) ++blocked;
  for (size_t at = 0; (at = log.find("\"checkpoint/write(s)\"", at)) != std::string::npos; ++at) ++written;
  // The log line of a step contains the times of the save after the previous step. No line follows the last save.
  EXPECT_EQ(blocked, 5);
  EXPECT_EQ(written, 5);
}

TEST(Saving, KeepEvery_KeepsCheckpointsAndExports) {
  const ScratchFolder scratch;
  train_with(scratch, {"checkpoint.keep_last=1", "checkpoint.keep_every=6", "checkpoint.export=every",
                       "checkpoint.export_dtype=bf16"});
  EXPECT_THAT(CheckpointStore(scratch / "run/checkpoints", 0).steps(), ElementsAre(6, 12));
  std::vector<std::string> exports;
  for (const auto& entry : fs::directory_iterator(scratch / "run/exports")) exports.push_back(entry.path().filename());
  EXPECT_EQ(exports.size(), 6u);
  EXPECT_TRUE(same_files(scratch / "run/exports/step-00000012", scratch / "run/model",
                         {"model.safetensors", "config.json", "tokenizer_config.json"}));
  EXPECT_EQ(LanguageModel::load(scratch / "run/exports/step-00000004").config().num_layers, 2);
}

}  // namespace
}  // namespace lazy::train
