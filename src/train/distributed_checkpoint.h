// Sharded checkpoints: staging of tensors in host memory, and a checkpoint that several ranks write together.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "distributed/shard_file.h"
#include "model/safetensors.h"
#include "train/checkpoint.h"

namespace c10 {
struct Event;
}

namespace lazy::distributed {
class Communicator;
}

namespace lazy::train {

// Copies tensors to host memory, so that training can modify the originals while the copy is written.
class StagedTensors {
 public:
  StagedTensors();
  ~StagedTensors();
  // CPU tensors have been copied when this function returns. Copies from a GPU go to pinned memory and are queued on
  // the current stream, so later work on that stream, such as the next weight update, runs after them. The next call
  // reuses the memory: nothing may read the previous copy at that time.
  void stage(const NamedTensors& tensors);
  // Waits until the copies have finished. Thread-safe.
  const NamedTensors& tensors() const;

 private:
  NamedTensors copies_;
  std::unique_ptr<c10::Event> copied_;  // null if no tensor came from a GPU
};

// Returns whether all ranks see the same folder, which must exist on rank 0. If so, each rank can write and read its
// shards there. Collective.
bool is_shared_folder(const std::filesystem::path& folder, distributed::Communicator& communicator);

// A barrier that every rank calls with its error message, or "" on success. Returns the message of a failed rank, or
// "".
using FailureBarrier = std::function<std::string(const std::string&)>;

// Writes a sharded checkpoint. Every rank calls this function with the same step. The folder must be on a file system
// that all ranks share. `write_rest` runs only on rank 0 and writes the model and the other unsharded files. After
// every rank has written its shards, rank 0 writes state.json and renames the folder. If one rank fails, all ranks
// throw RunError with its reason, and the incomplete checkpoint is removed.
void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world_size,
                  const std::vector<distributed::TensorShard>& shards,
                  const std::function<void(const std::filesystem::path&)>& write_rest, const FailureBarrier& barrier);

}  // namespace lazy::train
