// Checkpoints of a run: RUN/checkpoints/step-00000100/, each a model folder (config.json, model.safetensors, tokenizer)
// with optimizer.safetensors and state.json. A folder of that name is complete: it is written under another name,
// every file is synced, and then it is renamed. state.json has the checksums of the other files and its own.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/fault_policy.h"

namespace lazy::train {

// What a run must know to go on, beside weights and optimizer.
struct TrainState {
  int64_t step = 0;       // optimizer steps taken
  int64_t sequences = 0;  // position in the data: training sequences consumed
  int64_t tokens = 0;
  double seconds = 0;               // since the run first started, pauses left out
  FaultState faults;                // what on_nan and on_spike have counted
  nlohmann::ordered_json settings;  // TrainConfig::settings and what identifies model and corpus
};

nlohmann::ordered_json to_json(const TrainState& state);
TrainState state_from_json(const nlohmann::ordered_json& json, const std::string& file);

class CheckpointStore {
 public:
  // `keep_last` 0 keeps all. Steps that `keep_every` divides stay for ever (0: none does).
  CheckpointStore(std::filesystem::path directory, int64_t keep_last, int64_t keep_every = 0);

  // Writes a checkpoint: `write_files` puts the files into the folder it is given. Older ones beyond keep_last go.
  // RunError (a full disk) leaves no trace of the new one and all older ones.
  std::filesystem::path save(const TrainState& state,
                             const std::function<void(const std::filesystem::path&)>& write_files);

  // Under what name `save` writes it before it is complete.
  std::filesystem::path temporary(int64_t step) const;
  // Replaces what the checkpoint of state.step says of the run, not its files: the run goes on from it in another way.
  void rewrite_state(const TrainState& state);
  // Renames a checkpoint to damaged-step-*, so that it stands in nobody's way, and says why in one line.
  void set_aside(int64_t step, const std::string& why);

  // Steps of the folders that bear a checkpoint's name, ascending.
  std::vector<int64_t> steps() const;
  std::filesystem::path path(int64_t step) const;

  struct Found {
    std::filesystem::path path;
    TrainState state;
  };
  // The newest checkpoint whose files are all whole; damaged ones are set aside. Error when there are some but none is
  // usable.
  std::optional<Found> newest_usable();

  // Removes what an ended process left unfinished.
  void remove_unfinished();

 private:
  void prune();
  std::filesystem::path directory_;
  int64_t keep_last_, keep_every_;
};

// Reads and verifies state.json and the checksum of every file it lists. Error names the file and what is wrong.
TrainState verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace lazy::train
