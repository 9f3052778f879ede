// Checkpoints of a run: RUN/checkpoints/step-00000100/, each a model folder (config.json, model.safetensors, tokenizer)
// with optimizer.safetensors and state.json. A checkpoint is written to a temporary folder, its files are synced, and
// the folder is renamed: a folder step-* is complete. state.json has the checksums of the other files and its own.
#pragma once
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "train/anomaly.h"

namespace lazy::train {

// What a resumed run needs beside weights and optimizer state.
struct TrainState {
  int64_t step = 0;       // optimizer steps taken
  int64_t sequences = 0;  // training sequences consumed: the position in the data
  int64_t tokens = 0;
  double offset_shift = 0;          // that [model] offset_schedule has added to the offsets so far
  double seconds = 0;               // of training since the run first started, without pauses
  AnomalyState anomalies;           // counters of on_nan and on_spike
  nlohmann::ordered_json settings;  // run_settings()
};

nlohmann::ordered_json to_json(const TrainState& state);
TrainState state_from_json(const nlohmann::ordered_json& json, const std::string& file);

class CheckpointStore {
 public:
  // `keep_last` 0 keeps all. Multiples of `keep_every` are never removed (0: none).
  CheckpointStore(std::filesystem::path directory, int64_t keep_last, int64_t keep_every = 0);

  // Writes a checkpoint; `write_files` writes its files to the given folder. Then removes older checkpoints beyond
  // keep_last. After a RunError (a full disk) nothing of the new one and all older ones exist.
  std::filesystem::path save(const TrainState& state,
                             const std::function<void(const std::filesystem::path&)>& write_files);

  // The folder that `save` writes before the rename.
  std::filesystem::path temporary_path(int64_t step) const;
  // Replaces the state of the checkpoint of state.step and keeps its other files.
  void rewrite_state(const TrainState& state);
  // Renames a checkpoint to damaged-step-* and logs the reason.
  void mark_damaged(int64_t step, const std::string& why);

  // Steps of the existing checkpoints, ascending.
  std::vector<int64_t> steps() const;
  std::filesystem::path path(int64_t step) const;

  struct Checkpoint {
    std::filesystem::path path;
    TrainState state;
  };
  // The newest checkpoint whose checksums match; damaged ones are renamed. Error when all existing ones are damaged.
  std::optional<Checkpoint> newest_valid();

  // Removes temporary folders of a process that has ended.
  void remove_unfinished();

 private:
  void prune();
  std::filesystem::path directory_;
  int64_t keep_last_, keep_every_;
};

// Reads state.json and verifies the checksum of every file it lists. Error names the file and what is wrong.
TrainState verify_checkpoint(const std::filesystem::path& checkpoint);

// Asynchronous checkpoints: runs the write on a background thread, one at a time. Its exceptions are thrown in the
// training thread.

class CheckpointWriter {
 public:
  // Waits for the write in flight and ignores its error.
  ~CheckpointWriter() = default;

  // Runs `write`, which completes the checkpoint of `step`. Callers wait() before they change what the previous write
  // reads.
  void start(int64_t step, bool background, std::function<void()> write);
  // Waits for the write in flight and returns the seconds waited. Throws what the write threw.
  double wait();
  // Throws what a finished write threw. Never waits.
  void check();

  int64_t started() const { return started_; }  // step of the newest write started, 0: none
  int64_t saved() const { return saved_; }      // step of the newest complete write, 0: none
  void resumed_at(int64_t step) { started_ = saved_ = step; }
  // The duration of the last completed write, once.
  std::optional<double> take_write_seconds();

 private:
  void finish();
  int64_t started_ = 0, saved_ = 0;
  std::optional<double> write_seconds_;
  std::future<double> in_flight_;  // seconds it took; its destructor waits
};

}  // namespace lazy::train
