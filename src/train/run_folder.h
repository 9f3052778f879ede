// The folder of a run (docs/run-directory.md): who may write to it, what a new run and a resumed one find there.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "train/checkpoint.h"
#include "train/config.h"

namespace lazy::train {

class RunFolder {
 public:
  // Creates the folder and locks it: Error while another process trains there. With `resume` the newest usable
  // checkpoint is looked for; without, a folder that holds checkpoints or a finished model is an Error, and the log of
  // an attempt that reached no checkpoint is removed.
  RunFolder(const TrainConfig& config, bool resume);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  CheckpointStore& checkpoints() { return checkpoints_; }
  const std::optional<CheckpointStore::Found>& found() const { return found_; }
  bool has_model() const;

  // config.toml, and run.json unless an earlier part of the run wrote it.
  void describe(const TrainConfig& config, const nlohmann::ordered_json& facts) const;
  // Replaces the folder `name`, "model" or one of exports/, by what `write_files` puts into the folder it is given.
  std::filesystem::path publish_model(const std::filesystem::path& name,
                                      const std::function<void(const std::filesystem::path&)>& write_files) const;

 private:
  std::filesystem::path path_;
  CheckpointStore checkpoints_;
  std::optional<CheckpointStore::Found> found_;
  int lock_ = -1;
};

// A checkpoint continues under other settings than it was made with: another model or corpus is an Error, any other
// difference (a longer run, another rate) is reported, one line each, because the run is then no longer the same.
void compare_settings(const nlohmann::ordered_json& checkpoint, const nlohmann::ordered_json& now,
                      const std::string& file);

}  // namespace lazy::train
