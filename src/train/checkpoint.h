// Checkpoints of a run. Each one is a folder RUN/checkpoints/step-00000100/ that contains a loadable model
// (config.json, model.safetensors, tokenizer), optimizer.safetensors and state.json. A checkpoint is written to a
// temporary folder, its files are synced to disk, and the folder is renamed. A folder named step-* is therefore always
// complete. state.json contains the checksums of all other files and a checksum of itself.
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

// The state that a resumed run needs in addition to the weights and the optimizer state.
struct TrainState {
  int64_t step = 0;       // number of training steps taken
  int64_t sequences = 0;  // number of training sequences consumed, which is the position in the data stream
  int64_t tokens = 0;
  double offset_shift = 0;          // sum of the shifts that [model] offset_schedule has applied to the offsets tau
  double seconds = 0;               // training time since the run first started, without pauses
  AnomalyState anomalies;           // counters of skipped steps and roll backs
  nlohmann::ordered_json settings;  // return value of run_settings()
};

nlohmann::ordered_json to_json(const TrainState& state);
TrainState state_from_json(const nlohmann::ordered_json& json, const std::string& file);

class CheckpointStore {
 public:
  // Keeps the newest `keep_last` checkpoints (0: all). Checkpoints whose step is a multiple of `keep_every` are never
  // removed (0: no such exception).
  CheckpointStore(std::filesystem::path directory, int64_t keep_last, int64_t keep_every = 0);

  // Writes a checkpoint and then removes old checkpoints that exceed keep_last. `write_files` must write the
  // checkpoint's files into the given folder. On RunError, for example on a full disk, the incomplete checkpoint is
  // removed; older checkpoints are not affected.
  std::filesystem::path save(const TrainState& state,
                             const std::function<void(const std::filesystem::path&)>& write_files);

  // The temporary folder that `save` writes and then renames.
  std::filesystem::path temporary_path(int64_t step) const;
  // Replaces state.json in the checkpoint of state.step. The other files do not change.
  void rewrite_state(const TrainState& state);
  // Renames the checkpoint to damaged-step-* and logs the reason.
  void mark_damaged(int64_t step, const std::string& why);

  // Steps of the existing checkpoints in ascending order.
  std::vector<int64_t> steps() const;
  std::filesystem::path path(int64_t step) const;

  struct Checkpoint {
    std::filesystem::path path;
    TrainState state;
  };
  // Returns the newest checkpoint with correct checksums. Damaged checkpoints are renamed. Throws Error if checkpoints
  // exist and all of them are damaged.
  std::optional<Checkpoint> newest_valid();

  // Removes temporary folders that a terminated process did not remove.
  void remove_unfinished();

 private:
  void prune();
  std::filesystem::path directory_;
  int64_t keep_last_, keep_every_;
};

// Reads state.json and verifies the checksum of every listed file. Errors name the file and the mismatch.
TrainState verify_checkpoint(const std::filesystem::path& checkpoint);

// Writes checkpoints asynchronously on a background thread, at most one at a time. If a write throws an exception, the
// exception is rethrown in the training thread.

class CheckpointWriter {
 public:
  // Waits for a write that is in progress and ignores its error.
  ~CheckpointWriter() = default;

  // Runs `write`, which writes the checkpoint of `step`, in a background thread if `background` is true and before
  // start() returns otherwise. The caller must call wait() before it modifies data that the previous write reads.
  void start(int64_t step, bool background, std::function<void()> write);
  // Waits for a write that is in progress and returns the waiting time in seconds. Rethrows exceptions of the write.
  double wait();
  // Rethrows the exception of a finished write. Does not block.
  void check();

  int64_t started() const { return started_; }  // step of the last write that was started; 0: none
  int64_t saved() const { return saved_; }      // step of the last write that completed; 0: none
  void resumed_at(int64_t step) { started_ = saved_ = step; }
  // Duration in seconds of the last completed write. The value is returned only by the first call after that write.
  std::optional<double> take_write_seconds();

 private:
  void finish();
  int64_t started_ = 0, saved_ = 0;
  std::optional<double> write_seconds_;
  // The current write; its result is the duration in seconds. The destructor of the future waits for the write.
  std::future<double> in_flight_;
};

}  // namespace lazy::train
