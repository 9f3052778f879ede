// The training loop of one rank. Each source file of this folder has a part of it: setup.cc, step.cc, faults.cc,
// checkpoints.cc, log.cc.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/stop.h"
#include "data/tokenizer.h"
#include "model/language_model.h"
#include "train/batches.h"
#include "train/checkpoint_writer.h"
#include "train/distributed/data_parallel.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/snapshot.h"
#include "train/trainer.h"

namespace lazy::train {

class Trainer {
 public:
  Trainer(const TrainConfig& config, bool resume, Communicator& communicator, at::Device device);
  ~Trainer();
  TrainResult run();

 private:
  struct StepResult {
    double loss = 0, gradient_norm = 0, rate = 0;  // loss: nats a token, mean of the step
    double max_loss = 0;                           // of the ranks' losses
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    bool skipped = false;  // the update was left out (training.on_nan, training.on_spike)
  };
  // Sums over the steps since the last logged one.
  struct Interval {
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    int64_t steps = 0;
  };

  void compare_ranks();
  // The run's checkpoints as any rank sees them.
  CheckpointStore checkpoints_here() const { return CheckpointStore(config_.output / "checkpoints", 0); }
  std::filesystem::path checkpoint_folder(int64_t step) const { return checkpoints_here().path(step); }
  std::optional<CheckpointStore::Found> checkpoint_to_resume();
  std::optional<CheckpointStore::Found> of_first_rank(std::optional<CheckpointStore::Found> found);
  void resume_from(const CheckpointStore::Found& found);
  bool step(Batches& batches, StepResult& result);
  void reduce(StepResult& result);
  // The signal that asked this run to stop, 0 if none. Several ranks agree on it at the end of a step.
  int stopping() const { return communicator_.size() == 1 ? stop_signal() : agreed_signal_; }
  FaultAction check_step(const StepResult& result);
  void update(StepResult& result);
  CheckpointStore::Found load_weights(CheckpointStore::Found found);
  CheckpointStore::Found good_checkpoint();
  void roll_back(int64_t sequences);
  int64_t settled_checkpoint();
  double wait_for_writer();
  bool writes_together() const {
    return data_parallel_->sharded() && folder_shared_;
  }  // each rank its part of a checkpoint
  void validate();
  void write_log(const StepResult& result, Interval& interval, const Scalars& attention);
  // The first rank, or all where none has the whole model.
  bool evaluates() const { return communicator_.first() || data_parallel_->fully_sharded(); }
  NamedTensors whole_weights(const char* what);  // on the first rank
  void save_checkpoint();
  void write_checkpoint(const TrainState& state, const NamedTensors& weights, const std::vector<Piece>& optimizer,
                        bool sharded);
  TrainResult finish();
  double seconds() const { return state_.seconds + seconds_since(begin_); }
  bool due(int64_t every) const { return every > 0 && (state_.step % every == 0 || state_.step == config_.steps); }
  std::string note(const StepResult& result) const;

  TrainConfig config_;
  Communicator& communicator_;
  const at::Device device_;
  Sequences sequences_;
  std::optional<Sequences> held_out_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<RunFolder> folder_;  // on the first rank, which writes all but its share of checkpoints
  bool folder_shared_ = false;       // every rank can write there
  std::optional<LanguageModel> model_;
  NamedTensors loaded_;  // under full sharding, on the first rank: of a checkpoint, until they are divided
  std::optional<DataParallel> data_parallel_;
  std::optional<AdamW> optimizer_;
  std::optional<MetricsLog> log_;
  TrainState state_;  // state_.seconds is the time before this process
  Clock::time_point begin_ = Clock::now();
  double checkpoint_blocked_ = 0;     // seconds that saving held training up since the last logged line
  std::optional<double> validation_;  // nats a token, of validation_step_
  int64_t validation_step_ = -1;
  int64_t saved_step_ = 0;  // whose checkpoint was begun last, on every rank
  int agreed_signal_ = 0;
  int64_t proven_step_ = 0;  // of the newest checkpoint after which a step has succeeded
  Snapshot weights_copy_, optimizer_copy_;
  CheckpointWriter writer_;  // last: it ends before what it writes from
};

}  // namespace lazy::train
