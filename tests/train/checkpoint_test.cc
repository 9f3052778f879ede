#include "train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "scratch.h"
#include "support/error_of.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;

TrainState state_of(int64_t step) {
  TrainState state;
  state.step = step;
  state.sequences = step * 16;
  state.tokens = step * 4096;
  state.seconds = 0.1 * static_cast<double>(step);
  state.settings = {{"optimizer.lr", 0.003}, {"training.dtype", "fp32"}};
  return state;
}

fs::path save(CheckpointStore& store, int64_t step) {
  return store.save(state_of(step), [&](const fs::path& folder) {
    write_file_atomic(folder / "model.safetensors", std::string(1000, static_cast<char>('a' + step % 26)));
    write_file_atomic(folder / "config.json", "{}");
  });
}

TEST(Checkpoint, SavedCheckpoint_LoadsUnchanged) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 0);
  EXPECT_FALSE(store.newest_valid().has_value());
  const fs::path path = save(store, 12);
  EXPECT_EQ(path.filename(), "step-00000012");
  const auto found = store.newest_valid();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, path);
  EXPECT_EQ(to_json(found->state), to_json(state_of(12)));
}

TEST(Checkpoint, KeepLast_KeepsNewestByNumber) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 2);
  for (const int64_t step : {9, 10, 99999999, 100000000}) save(store, step);
  EXPECT_THAT(store.steps(), ElementsAre(99999999, 100000000));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(scratch / "checkpoints")) ++entries;
  EXPECT_EQ(entries, 2);
}

// Each case damages one file of the newest checkpoint in a different way. The store must rename the damaged checkpoint
// and use the previous one.
TEST(Checkpoint, DamagedCheckpoint_PreviousOneIsUsed) {
  const auto damages = std::vector<std::pair<std::string, std::function<void(const fs::path&)>>>{
      {"truncated", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }},
      {"empty", [](const fs::path& file) { fs::resize_file(file, 0); }},
      {"longer", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) + 1); }},
      {"removed", [](const fs::path& file) { fs::remove(file); }},
      {"one bit", [](const fs::path& file) {
         std::string content = read_file(file);
         content[content.size() / 2] ^= 1;
         write_file_atomic(file, content);
       }}};
  for (const std::string file : {"model.safetensors", "config.json", "state.json"}) {
    for (const auto& [name, damage] : damages) {
      SCOPED_TRACE(file + " " + name);
      const ScratchFolder scratch;
      CheckpointStore store(scratch / "checkpoints", 0);
      save(store, 10);
      damage(save(store, 20) / file);
      ::testing::internal::CaptureStderr();
      const auto found = store.newest_valid();
      const std::string told = ::testing::internal::GetCapturedStderr();
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->state.step, 10);
      EXPECT_THAT(told, Names({"damaged-step-00000020", file}));
      EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
      EXPECT_TRUE(fs::exists(scratch / "checkpoints/damaged-step-00000020"));
      save(store, 20);  // saving the same step again works, because the damaged folder was renamed
      EXPECT_EQ(store.newest_valid()->state.step, 20);
    }
  }
}

TEST(Checkpoint, NoUsableCheckpoint_IsAnError) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 0);
  fs::remove(save(store, 10) / "config.json");
  EXPECT_THAT(error_of([&] { store.newest_valid(); }),
              Names({(scratch / "checkpoints").string(), "config.json", "--resume"}));
}

TEST(Checkpoint, FailedWrite_LeavesNoFiles) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 1);
  save(store, 10);
  const auto failing = [&] {
    store.save(state_of(20), [](const fs::path& folder) {
      write_file_atomic(folder / "config.json", "{}");
      throw RunError("write: model.safetensors: No space left on device");
    });
  };
  EXPECT_THAT(error_of<RunError>(failing),
              IsMessage("checkpoint of step 20 not saved: write: model.safetensors: No space left on device"));
  EXPECT_THAT(store.steps(), ElementsAre(10));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch / "checkpoints"), fs::directory_iterator()), 1);
  EXPECT_EQ(store.newest_valid()->state.step, 10);
}

TEST(Checkpoint, UnfinishedFolders_AreIgnoredAndRemoved) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 0);
  save(store, 10);
  fs::create_directories(scratch / "checkpoints/.tmp-step-00000020");
  fs::create_directories(scratch / "checkpoints/step-00000030x");
  fs::create_directories(scratch / "checkpoints/step-40");
  EXPECT_THAT(store.steps(), ElementsAre(10));
  store.remove_unfinished();
  EXPECT_FALSE(fs::exists(scratch / "checkpoints/.tmp-step-00000020"));
  // the store did not create this folder, so it does not remove it
  EXPECT_TRUE(fs::exists(scratch / "checkpoints/step-00000030x"));
}

}  // namespace
}  // namespace lazy::train
