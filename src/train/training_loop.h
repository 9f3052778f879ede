// The training loop of one rank. training_loop.cc contains the set-up, the loop and the log, training_step.cc an
// optimizer step and its anomaly handling, and training_checkpoint.cc the saving and loading of checkpoints.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/stop.h"
#include "data/tokenizer.h"
#include "distributed/data_parallel.h"
#include "model/blocks/activation_budget.h"
#include "model/language_model.h"
#include "train/batches.h"
#include "train/distributed_checkpoint.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace lazy::train {

using distributed::Communicator;
using distributed::ShardReader;
using distributed::TensorShard;

class Trainer {
 public:
  Trainer(const TrainConfig& config, bool resume, Communicator& communicator, at::Device device);
  ~Trainer();
  TrainResult run();

 private:
  struct StepResult {
    double loss = 0, gradient_norm = 0, learning_rate = 0;  // loss: mean loss of the step in nats per token
    double max_loss = 0;                                    // maximum of the mean losses of the ranks
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    bool skipped = false;  // the step made no weight update (training.on_nan, training.on_spike)
  };
  // Sums over the steps since the last line of the log.
  struct LogInterval {
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    int64_t steps = 0;
  };

  // Functions that are defined in training_loop.cc:
  void check_ranks_agree();
  void keep_to_time(double seconds);
  void validate();
  void write_log(const StepResult& result, LogInterval& interval, const Scalars& attention);
  TrainResult finish();
  std::string stopped_message(int signal) const;  // returns the message for a run that a signal has stopped
  std::string progress_text(const StepResult& result) const;
  // Returns the time for training steps in seconds. 5 % of training.minutes is reserved for the end of the run.
  double seconds_for_steps() const { return 0.95 * 60 * config_.minutes; }
  double seconds() const { return state_.seconds + seconds_since(begin_); }
  bool due(int64_t every) const { return every > 0 && (state_.step % every == 0 || state_.step == config_.steps); }
  // Whether this rank evaluates the model: rank 0, or all ranks if no single rank has all weights.
  bool evaluates() const { return communicator_.is_rank0() || data_parallel_->fully_sharded(); }

  // Functions that are defined in training_step.cc:
  bool step(Batches& batches, StepResult& result);
  void reduce(StepResult& result);
  void update(StepResult& result);
  // Shifts the offsets by the change of [model] offset_schedule since the last call. Call this with the number of steps
  // taken, before weights_updated().
  void shift_offsets(int64_t steps_taken);
  // Returns the signal that requests this run to stop, or 0. With several ranks, all ranks agree on the signal at the
  // end of a step.
  int stopping() const { return communicator_.size() == 1 ? stop_signal() : agreed_signal_; }
  AnomalyAction handle_anomaly(const StepResult& result);
  CheckpointStore::Checkpoint find_roll_back_checkpoint();
  void roll_back(int64_t sequences);
  int64_t wait_for_saved_step();

  // Functions that are defined in training_checkpoint.cc:
  // The checkpoints of the run. Available on every rank.
  CheckpointStore checkpoint_store() const { return CheckpointStore(config_.output / "checkpoints", 0); }
  std::filesystem::path checkpoint_folder(int64_t step) const { return checkpoint_store().path(step); }
  CheckpointStore::Checkpoint load_weights(CheckpointStore::Checkpoint checkpoint);
  std::optional<CheckpointStore::Checkpoint> find_resume_checkpoint();
  std::optional<CheckpointStore::Checkpoint> broadcast_checkpoint(
      std::optional<CheckpointStore::Checkpoint> checkpoint);
  void resume_from(const CheckpointStore::Checkpoint& checkpoint);
  // Whether each rank writes its own shards of a checkpoint.
  bool saves_sharded() const { return data_parallel_->sharded() && folder_shared_; }
  NamedTensors gather_full_weights(const char* what);  // the result is complete on rank 0
  void save_checkpoint();
  // Writes a model folder: weights, tokenizer, and the chat template and generation settings of the pretrained model,
  // if training started from one.
  void write_model(const std::filesystem::path& folder, const std::string& dtype, const NamedTensors& weights) const;
  void write_checkpoint(const TrainState& state, const NamedTensors& weights, const std::vector<TensorShard>& optimizer,
                        bool sharded);
  double wait_for_writer();

  TrainConfig config_;
  const int64_t most_steps_;  // value of training.steps, whereas keep_to_time() may reduce config_.steps
  Communicator& communicator_;
  const at::Device device_;
  const bool resumes_;  // --resume was given
  Sequences sequences_;
  std::optional<Sequences> validation_sequences_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<RunFolder> folder_;  // set on rank 0 only
  bool folder_shared_ = false;       // whether all ranks see the run folder
  std::optional<LanguageModel> model_;
  NamedTensors loaded_weights_;  // on rank 0 under full sharding: weights of a checkpoint, until they are sent
  std::optional<distributed::DataParallel> data_parallel_;
  std::optional<AdamW> optimizer_;
  ActivationBudget kept_activations_;
  std::optional<MetricsLog> log_;
  TrainState state_;  // state_.seconds is the training time before this process started
  Clock::time_point begin_ = Clock::now();
  double checkpoint_seconds_ = 0;          // time for which saving has blocked training since the last logged line
  std::optional<double> validation_loss_;  // last validation loss in nats per token, measured at validation_step_
  int64_t validation_step_ = -1;
  int64_t saved_step_ = 0;  // step of the last checkpoint that was started; equal on all ranks
  int agreed_signal_ = 0;
  double agreed_seconds_ = 0;     // duration of the run at the end of a step, mean over the ranks
  int64_t timed_from_step_ = -1;  // step at which keep_to_time() started to measure the speed
  double timed_from_seconds_ = 0;
  int64_t verified_step_ = 0;  // step of the last checkpoint after which a training step succeeded
  StagedTensors staged_weights_, staged_optimizer_;
  CheckpointWriter writer_;  // declared last so that it is destroyed before the tensors that it writes
};

}  // namespace lazy::train
