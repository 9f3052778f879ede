// Saving the state, and going on from a saved one.
#include "train/loop/loop.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "model/safetensors.h"
#include "train/checkpoint_pieces.h"
#include "train/description.h"
#include "train/sharded_checkpoint.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

constexpr const char* kRandomState = "random_state.cpu";

at::Generator cpu_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

std::vector<Piece> with_tensors(std::vector<Piece> pieces, const NamedTensors& tensors) {
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].tensor = tensors[i].second;
  return pieces;
}

}  // namespace

CheckpointStore::Found Trainer::load_weights(CheckpointStore::Found found) {
  CheckpointStore& store = folder_->checkpoints();
  while (true) {
    compare_settings(found.state.settings, run_settings(config_, sequences_), (found.path / "state.json").string());
    try {
      if (data_parallel_->fully_sharded()) {
        loaded_ = LanguageModel::load(found.path, model_->config()).stored();
      } else {
        model_->load_weights(found.path);
      }
      return found;
    } catch (const Error& e) {
      store.set_aside(found.state.step, e.what());
      auto former = store.newest_usable();
      if (!former) fail("checkpoint", "no usable checkpoint is left ({}); without --resume a new run starts", e.what());
      found = std::move(*former);
    }
  }
}

// The first rank's, whose weights are loaded there.
std::optional<CheckpointStore::Found> Trainer::checkpoint_to_resume() {
  const Communicator::Waiting waiting(communicator_, "the search for a checkpoint");
  std::optional<CheckpointStore::Found> found;
  if (folder_ && folder_->found()) found = load_weights(*folder_->found());
  return of_first_rank(std::move(found));
}

// What the first rank has found, which the others may not be able to read.
std::optional<CheckpointStore::Found> Trainer::of_first_rank(std::optional<CheckpointStore::Found> found) {
  if (communicator_.size() == 1) return found;
  const std::string text = communicator_.broadcast(found ? to_json(found->state).dump() : "");
  if (text.empty() || found) return found;
  return CheckpointStore::Found{{}, state_from_json(nlohmann::ordered_json::parse(text), "the first rank's state")};
}

void Trainer::resume_from(const CheckpointStore::Found& found) {
  state_ = found.state;
  saved_step_ = state_.step;
  writer_.resumed_at(state_.step);
  const fs::path folder = checkpoint_folder(state_.step);
  std::map<std::string, at::Tensor> tensors;
  // From the disk what this rank needs, or all of it from the first rank.
  if (folder_shared_) {
    tensors = data_parallel_->read_state(PieceReader(folder), folder.string());
  } else if (communicator_.first()) {
    tensors = PieceReader(folder).read_all();
  }
  if (const auto random = tensors.extract(kRandomState); communicator_.first()) {
    if (random.empty()) fail("checkpoint", "{}: missing tensor '{}'", folder.string(), kRandomState);
    cpu_generator().set_state(random.mapped());
  }
  const Communicator::Waiting waiting(communicator_, "reading the checkpoint");
  data_parallel_->broadcast_weights(std::exchange(loaded_, {}));
  if (!folder_shared_) tensors = data_parallel_->scatter_state(std::move(tensors), folder.string());
  optimizer_->load_state(tensors, folder.string());
}

NamedTensors Trainer::whole_weights(const char* what) {
  const Communicator::Waiting waiting(communicator_, what);
  return data_parallel_->whole_weights(model_->stored());
}

void Trainer::save_checkpoint() {
  const auto begin = Clock::now();
  saved_step_ = state_.step;
  const bool sharded = writes_together();
  NamedTensors weights = whole_weights("collecting a checkpoint's weights");
  NamedTensors optimizer = optimizer_->state();
  if (!sharded) {
    const Communicator::Waiting waiting(communicator_, "collecting a checkpoint");
    optimizer = data_parallel_->gather_state(optimizer);
    if (!communicator_.first()) return;
  }
  const int64_t former = writer_.started();
  if (const double waited = wait_for_writer(); waited > 0.1) {
    log::info("checkpoint of step {} waited {:.1f} s for that of step {} to be written", state_.step, waited, former);
  }
  TrainState state = state_;
  state.seconds = seconds();
  if (communicator_.first()) optimizer.emplace_back(kRandomState, cpu_generator().get_state());
  const bool copy = config_.checkpoint_async, copy_weights = copy && !data_parallel_->fully_sharded();
  std::vector<Piece> pieces = data_parallel_->state_pieces(optimizer);
  if (copy) {
    NamedTensors held;
    for (const Piece& piece : pieces) held.emplace_back(piece.name, piece.tensor);
    if (copy_weights) {
      weights_copy_.take(weights);
      weights.clear();
    }
    optimizer_copy_.take(held);
    for (Piece& piece : pieces) piece.tensor.reset();
  }
  optimizer.clear();
  writer_.start(state.step, copy,
                [this, copy, copy_weights, sharded, state = std::move(state), weights = std::move(weights),
                 pieces = std::move(pieces)] {
                  write_checkpoint(state, copy_weights ? weights_copy_.tensors() : weights,
                                   copy ? with_tensors(pieces, optimizer_copy_.tensors()) : pieces, sharded);
                });
  checkpoint_blocked_ += seconds_since(begin);
}

void Trainer::write_checkpoint(const TrainState& state, const NamedTensors& weights,
                               const std::vector<Piece>& optimizer, bool sharded) {
  const auto write_model = [&](const fs::path& folder, const std::string& dtype) {
    model_->save(folder, dtype, weights);
    tokenizer_->save(folder);
  };
  const auto prepare = [&] {
    log_->sync();
    if (!config_.export_every) return;
    folder_->publish_model(fs::path("exports") / folder_->checkpoints().path(state.step).filename(),
                           [&](const fs::path& folder) { write_model(folder, config_.export_dtype); });
  };
  if (!sharded) {
    prepare();
    folder_->checkpoints().save(state, [&](const fs::path& folder) {
      write_model(folder, "fp32");
      NamedTensors tensors;
      for (const Piece& piece : optimizer) tensors.emplace_back(piece.name, piece.tensor);
      write_safetensors(folder / "optimizer.safetensors", tensors);
    });
    return;
  }
  CheckpointStore others = checkpoints_here();
  save_sharded(
      folder_ ? folder_->checkpoints() : others, state, communicator_.rank(), communicator_.size(), optimizer,
      [&](const fs::path& folder) {
        prepare();
        write_model(folder, "fp32");
      },
      [this](const std::string& failure) { return communicator_.agree(failure); });
}

double Trainer::wait_for_writer() {
  std::optional<Communicator::Blocked> blocked;
  if (writes_together()) blocked.emplace(communicator_);
  return writer_.wait();
}

}  // namespace lazy::train
