// Sharded checkpoints: tensors staged in host memory, and a checkpoint that several ranks write together.
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

// A copy of tensors in host memory, so that training may change the originals while the copy is written.
class StagedTensors {
 public:
  StagedTensors();
  ~StagedTensors();
  // CPU tensors are copied when this returns. Copies from a GPU go to pinned memory and are queued on its current
  // stream: later work on the stream, such as the next update of the weights, comes after them. The memory is reused by
  // the next call, so that nothing may still read the previous copy.
  void stage(const NamedTensors& tensors);
  // Waits for the copies. Thread-safe.
  const NamedTensors& tensors() const;

 private:
  NamedTensors copies_;
  std::unique_ptr<c10::Event> copied_;  // null: no tensor came from a GPU
};

// Whether all ranks see the same folder, which exists on rank 0: each can then write and read its own shards there.
// Collective.
bool is_shared_folder(const std::filesystem::path& folder, distributed::Communicator& communicator);

// A barrier that every rank calls with its failure, or "". Returns a failure that one of them passed, or "".
using FailureBarrier = std::function<std::string(const std::string&)>;

// Every rank calls this with the same step; the folder must be on a file system that all ranks share. `write_rest`
// (rank 0 only) writes the model and other unsharded files. When every rank has written, rank 0 writes state.json and
// renames the folder. When one fails, all throw RunError with its reason, and nothing of the checkpoint remains.
void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world_size,
                  const std::vector<distributed::TensorShard>& shards,
                  const std::function<void(const std::filesystem::path&)>& write_rest, const FailureBarrier& barrier);

}  // namespace lazy::train
