#include "train/training_loop.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "distributed/shard_file.h"
#include "model/folder_metadata.h"
#include "model/safetensors.h"
#include "train/distributed_checkpoint.h"
#include "train/run_info.h"

namespace lazy::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRandomState = "random_state.cpu";

at::Generator cpu_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

std::vector<TensorShard> with_tensors(std::vector<TensorShard> shards, const NamedTensors& tensors) {
  for (size_t i = 0; i < shards.size(); ++i) shards[i].tensor = tensors[i].second;
  return shards;
}

}  // namespace

CheckpointStore::Checkpoint Trainer::load_weights(CheckpointStore::Checkpoint found) {
  CheckpointStore& store = folder_->checkpoints();
  while (true) {
    compare_settings(found.state.settings, run_settings(config_, sequences_), (found.path / "state.json").string());
    try {
      if (data_parallel_->fully_sharded()) {
        loaded_weights_ = LanguageModel::load(found.path, model_->config()).stored();
      } else {
        model_->load_weights(found.path);
      }
      return found;
    } catch (const Error& e) {
      store.mark_damaged(found.state.step, e.what());
      auto previous = store.newest_valid();
      if (!previous)
        fail("checkpoint", "no usable checkpoint is left ({}); omit --resume to start a new run", e.what());
      found = std::move(*previous);
    }
  }
}

// Returns the checkpoint to resume from, on every rank. Rank 0 finds the checkpoint and loads its weights.
std::optional<CheckpointStore::Checkpoint> Trainer::find_resume_checkpoint() {
  const Communicator::WaitScope wait_scope(communicator_, "the checkpoint search");
  std::optional<CheckpointStore::Checkpoint> found;
  if (folder_ && folder_->resume_checkpoint()) found = load_weights(*folder_->resume_checkpoint());
  return broadcast_checkpoint(std::move(found));
}

// Sends the state of the checkpoint that rank 0 has found to the other ranks, which may not be able to read its folder.
std::optional<CheckpointStore::Checkpoint> Trainer::broadcast_checkpoint(
    std::optional<CheckpointStore::Checkpoint> found) {
  if (communicator_.size() == 1) return found;
  const std::string text = communicator_.broadcast(found ? to_json(found->state).dump() : "");
  if (text.empty() || found) return found;
  return CheckpointStore::Checkpoint{{}, state_from_json(nlohmann::ordered_json::parse(text), "the state of rank 0")};
}

void Trainer::resume_from(const CheckpointStore::Checkpoint& found) {
  state_ = found.state;
  saved_step_ = state_.step;
  writer_.resumed_at(state_.step);
  const fs::path folder = checkpoint_folder(state_.step);
  std::map<std::string, at::Tensor> tensors;
  // If all ranks see the folder, each rank reads its own shards. Otherwise rank 0 reads all tensors and scatters them.
  if (folder_shared_) {
    tensors = data_parallel_->read_state(ShardReader(folder), folder.string());
  } else if (communicator_.is_rank0()) {
    tensors = ShardReader(folder).read_all();
  }
  if (const auto random = tensors.extract(kRandomState); communicator_.is_rank0()) {
    if (random.empty()) fail("checkpoint", "{}: missing tensor '{}'", folder.string(), kRandomState);
    cpu_generator().set_state(random.mapped());
  }
  const Communicator::WaitScope wait_scope(communicator_, "reading the checkpoint");
  data_parallel_->broadcast_weights(std::exchange(loaded_weights_, {}));
  if (!folder_shared_) tensors = data_parallel_->scatter_state(std::move(tensors), folder.string());
  optimizer_->load_state(tensors, folder.string());
}

NamedTensors Trainer::gather_full_weights(const char* what) {
  const Communicator::WaitScope wait_scope(communicator_, what);
  return data_parallel_->gather_full_weights(model_->stored());
}

void Trainer::save_checkpoint() {
  const auto begin = Clock::now();
  saved_step_ = state_.step;
  const bool sharded = saves_sharded();
  NamedTensors weights = gather_full_weights("gathering the weights for a checkpoint");
  NamedTensors optimizer = optimizer_->state();
  if (!sharded) {
    const Communicator::WaitScope wait_scope(communicator_, "gathering the optimizer state for a checkpoint");
    optimizer = data_parallel_->gather_state(optimizer);
    if (!communicator_.is_rank0()) return;
  }
  const int64_t previous = writer_.started();
  if (const double waited = wait_for_writer(); waited > 0.1) {
    log::info("checkpoint of step {} waited {:.1f} s until the checkpoint of step {} was written", state_.step, waited,
              previous);
  }
  TrainState state = state_;
  state.seconds = seconds();
  if (communicator_.is_rank0()) optimizer.emplace_back(kRandomState, cpu_generator().get_state());
  const bool copy = config_.checkpoint_async, copy_weights = copy && !data_parallel_->fully_sharded();
  std::vector<TensorShard> shards = data_parallel_->state_shards(optimizer);
  if (copy) {
    NamedTensors held;
    for (const TensorShard& shard : shards) held.emplace_back(shard.name, shard.tensor);
    if (copy_weights) {
      staged_weights_.stage(weights);
      weights.clear();
    }
    staged_optimizer_.stage(held);
    for (TensorShard& shard : shards) shard.tensor.reset();
  }
  optimizer.clear();
  writer_.start(state.step, copy,
                [this, copy, copy_weights, sharded, state = std::move(state), weights = std::move(weights),
                 shards = std::move(shards)] {
                  write_checkpoint(state, copy_weights ? staged_weights_.tensors() : weights,
                                   copy ? with_tensors(shards, staged_optimizer_.tensors()) : shards, sharded);
                });
  checkpoint_seconds_ += seconds_since(begin);
}

void Trainer::write_model(const fs::path& folder, const std::string& dtype, const NamedTensors& weights) const {
  model_->save(folder, dtype, weights);
  tokenizer_->save(folder);
  if (config_.from.empty()) return;
  if (fs::exists(config_.from / "config.json")) {
    keep_metadata(config_.from, folder, {tokenizer_->bos_id(), tokenizer_->eos_id()});
  } else {
    log::warn("{} no longer exists: {} lacks its chat template and generation settings", config_.from.string(),
              folder.string());
  }
}

void Trainer::write_checkpoint(const TrainState& state, const NamedTensors& weights,
                               const std::vector<TensorShard>& optimizer, bool sharded) {
  const auto prepare = [&] {
    log_->sync();
    if (!config_.export_every) return;
    folder_->publish_model(fs::path("exports") / folder_->checkpoints().path(state.step).filename(),
                           [&](const fs::path& folder) { write_model(folder, config_.export_dtype, weights); });
  };
  if (!sharded) {
    prepare();
    folder_->checkpoints().save(state, [&](const fs::path& folder) {
      write_model(folder, "fp32", weights);
      NamedTensors tensors;
      for (const TensorShard& shard : optimizer) tensors.emplace_back(shard.name, shard.tensor);
      write_safetensors(folder / "optimizer.safetensors", tensors);
    });
    return;
  }
  CheckpointStore others = checkpoint_store();
  save_sharded(
      folder_ ? folder_->checkpoints() : others, state, communicator_.rank(), communicator_.size(), optimizer,
      [&](const fs::path& folder) {
        prepare();
        write_model(folder, "fp32", weights);
      },
      [this](const std::string& failure) { return communicator_.background_barrier(failure); });
}

double Trainer::wait_for_writer() {
  std::optional<Communicator::JoinScope> join;
  if (saves_sharded()) join.emplace(communicator_);
  return writer_.wait();
}

}  // namespace lazy::train
