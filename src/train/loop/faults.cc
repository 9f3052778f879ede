// Steps whose loss or gradient is no number, or far from what is usual.
#include "train/loop/loop.h"

#include "core/log.h"

namespace lazy::train {

FaultAction Trainer::check_step(const StepResult& result) {
  const Verdict verdict = judge(config_.faults, state_.faults, result.loss, result.gradient_norm);
  const int64_t number = state_.step + 1;
  if (verdict.action == FaultAction::skip) {
    log::warn("step {}: {}; its update is left out ({} in a row)", number, verdict.problem,
              state_.faults.skipped_in_a_row);
  }
  if (verdict.action != FaultAction::none && verdict.action != FaultAction::skip) {
    const int64_t saved = std::stoll(communicator_.broadcast(std::to_string(settled_checkpoint())));
    const bool back = verdict.action == FaultAction::roll_back && saved > 0;
    if (!back) {
      fail_run("train", "step {}: {}; training stops before this step changes the weights{}, {}", number,
               verdict.problem, verdict.limit.empty() ? "" : " (" + verdict.limit + ")",
               saved > 0 ? fmt::format("the last checkpoint is that of step {}", saved) : "there is no checkpoint yet");
    }
    log::warn("step {}: {}; back to the last checkpoint, the data since then is passed over (roll back {} of {})",
              number, verdict.problem, state_.faults.rolled_back, config_.faults.max_roll_backs);
  }
  return verdict.action;
}

CheckpointStore::Found Trainer::good_checkpoint() {
  CheckpointStore& store = folder_->checkpoints();
  const int64_t newest = writer_.saved();
  if (proven_step_ < newest && store.steps().size() > 1) store.set_aside(newest, "no step after it succeeded");
  auto found = store.newest_usable();
  if (!found) fail_run("train", "step {}: there is no checkpoint left to go back to", state_.step + 1);
  return load_weights(std::move(*found));
}

void Trainer::roll_back(int64_t sequences) {
  const int64_t rolled_back = state_.faults.rolled_back;
  const double spent = seconds();
  data_parallel_->drop_gradients();
  std::optional<CheckpointStore::Found> found;
  if (communicator_.first()) found = good_checkpoint();
  resume_from(*of_first_rank(std::move(found)));
  state_.sequences = sequences;
  state_.faults.rolled_back = rolled_back;
  state_.faults.skipped_in_a_row = 0;
  state_.seconds = spent;
  begin_ = Clock::now();
  validation_step_ = -1;
  if (folder_) {
    // A run that is killed now neither meets the same data again nor forgets the count.
    folder_->checkpoints().rewrite_state(state_);
    log_.emplace(folder_->path(), state_.step, config_.tensorboard);
  }
  log::info("training goes on from step {}", state_.step);
}

int64_t Trainer::settled_checkpoint() {
  try {
    wait_for_writer();
  } catch (const Error& e) {
    log::warn("{}", e.what());
  }
  return writer_.saved();
}

}  // namespace lazy::train
