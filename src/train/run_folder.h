// The output folder of a run (docs/reference/run-directory.md): lock, checkpoints, run description and exported models.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "train/checkpoint.h"
#include "train/config.h"

namespace lazy::train {

class RunFolder {
 public:
  // Creates and locks the folder. Throws Error if another process is training in it. With `resume`, finds the newest
  // valid checkpoint. Without `resume`, throws Error if the folder contains checkpoints or a finished model; otherwise
  // removes the log of an earlier attempt that wrote no checkpoint.
  RunFolder(const TrainConfig& config, bool resume);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  CheckpointStore& checkpoints() { return checkpoints_; }
  const std::optional<CheckpointStore::Checkpoint>& resume_checkpoint() const { return resume_checkpoint_; }
  bool has_model() const;

  // Writes config.toml. Writes run.json unless it already exists because the run was resumed.
  void describe(const TrainConfig& config, const nlohmann::ordered_json& facts) const;
  // Atomically replaces the folder `name`, which is "model" or a folder in exports/. `write_files` writes its files.
  std::filesystem::path publish_model(const std::filesystem::path& name,
                                      const std::function<void(const std::filesystem::path&)>& write_files) const;

 private:
  std::filesystem::path path_;
  CheckpointStore checkpoints_;
  std::optional<CheckpointStore::Checkpoint> resume_checkpoint_;
  int lock_ = -1;
};

}  // namespace lazy::train
