#include "train/training_loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "core/log.h"
#include "model/parameters.h"
#include "train/profiling.h"

namespace lazy::train {

bool Trainer::step(Batches& batches, StepResult& result) {
  const auto begin = Clock::now();
  result = {};
  communicator_.set_step(state_.step + 1);
  const double micro_batches = static_cast<double>(config_.ranks * config_.accumulation);
  std::vector<at::Tensor> losses;
  const double waited = data_parallel_->seconds_waited();
  std::optional<Trace> trace;
  const int64_t number = state_.step + 1;
  if (communicator_.is_rank0() && std::count(config_.trace_steps.begin(), config_.trace_steps.end(), number) > 0)
    trace.emplace(device_);
  for (int64_t micro = 0; micro < config_.accumulation; ++micro) {
    if (stopping()) {
      data_parallel_->zero_grad();
      return false;
    }
    writer_.check();
    const auto waiting = Clock::now();
    const Batch batch = batches.next().to(device_);
    result.data_seconds += seconds_since(waiting);
    at::Tensor loss;
    {
      const ActivationBudget::ForwardPass pass(kept_activations_);
      loss = model_->loss(batch.ids, batch.labels);
    }
    if (micro_batches > 1) loss = loss / micro_batches;
    data_parallel_->begin_backward(micro + 1 == config_.accumulation);
    loss.backward();
    losses.push_back(loss.detach());
  }
  for (const at::Tensor& loss : losses) result.loss += loss.item<double>();  // item() synchronizes with the GPU
  result.communication_seconds = data_parallel_->seconds_waited() - waited;
  reduce(result);
  const int64_t sequences = state_.sequences + config_.ranks * config_.accumulation * config_.batch_size;
  result.learning_rate = config_.schedule.rate(state_.step);
  switch (handle_anomaly(result)) {
    case AnomalyAction::roll_back:
      roll_back(sequences);
      trace.reset();
      return step(batches, result);  // repeats the step; training.max_roll_backs limits the depth of this recursion
    case AnomalyAction::skip:
      result.skipped = true;
      break;
    default:
      update(result);
      kept_activations_.end_step();
  }
  data_parallel_->zero_grad();
  ++state_.step;
  state_.sequences = sequences;
  state_.tokens += config_.tokens_per_step();
  result.seconds = seconds_since(begin);
  if (trace) trace->save(folder_->path() / "trace" / fmt::format("step-{:08d}.json", number));
  return true;
}

void Trainer::reduce(StepResult& result) {
  const auto begin = Clock::now();
  const Communicator::WaitScope wait_scope(communicator_, "the gradient reduction");
  data_parallel_->finish_gradients();
  result.gradient_norm = optimizer_->gradient_norm();
  result.max_loss = result.loss;
  agreed_seconds_ = seconds();
  if (communicator_.size() == 1) return;
  const bool sharded = data_parallel_->sharded();  // if true, the norm covers only the shards of this rank
  const int signal = stop_signal();
  std::vector<double> mine{result.loss,
                           sharded ? result.gradient_norm * result.gradient_norm : 0,
                           signal == SIGINT ? 1.0 : 0.0,
                           signal == SIGTERM ? 1.0 : 0.0,
                           signal == SIGUSR1 ? 1.0 : 0.0,
                           agreed_seconds_};
  // From index `losses` on there is one entry for the mean loss of each rank. Each rank sets only its own entry, so the
  // sums over the ranks are the losses.
  const size_t losses = mine.size();
  mine.resize(losses + static_cast<size_t>(communicator_.size()), 0.0);
  mine[losses + static_cast<size_t>(communicator_.rank())] = result.loss * static_cast<double>(config_.ranks);
  const std::vector<double> sums = communicator_.sum(mine);
  result.max_loss = *std::max_element(sums.begin() + static_cast<std::ptrdiff_t>(losses), sums.end());
  result.loss = sums[0];
  agreed_seconds_ = sums[5] / static_cast<double>(communicator_.size());
  if (sharded) result.gradient_norm = std::sqrt(sums[1]);
  if (sums[2] + sums[3] + sums[4] > 0) agreed_signal_ = sums[2] > 0 ? SIGINT : sums[3] > 0 ? SIGTERM : SIGUSR1;
  result.communication_seconds += seconds_since(begin);
}

void Trainer::update(StepResult& result) {
  optimizer_->step(result.learning_rate, result.gradient_norm, config_.max_norm);
  shift_offsets(state_.step + 1);
  verified_step_ = writer_.started();
  if (!data_parallel_->sharded()) return;
  const auto begin = Clock::now();
  const Communicator::WaitScope wait_scope(communicator_, "gathering the weights");
  data_parallel_->weights_updated();
  result.communication_seconds += seconds_since(begin);
}

void Trainer::shift_offsets(int64_t steps_taken) {
  const double shift = config_.offset_schedule.shift(state_.offset_shift, steps_taken, config_.steps);
  const double change = shift - state_.offset_shift;
  if (change == 0) return;
  const std::string offset = CheckpointNames(config_.model).offset;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : data_parallel_->optimizer_parameters()) {
    if (name.ends_with(offset)) at::Tensor(tensor).add_(change);
  }
  state_.offset_shift = shift;
}

AnomalyAction Trainer::handle_anomaly(const StepResult& result) {
  const AnomalyDecision decision =
      check_anomaly(config_.anomalies, state_.anomalies, result.loss, result.gradient_norm);
  const int64_t number = state_.step + 1;
  if (decision.action == AnomalyAction::skip) {
    log::warn("step {}: {}; its update is skipped ({} consecutive skips)", number, decision.problem,
              state_.anomalies.skipped_in_a_row);
  }
  if (decision.action != AnomalyAction::none && decision.action != AnomalyAction::skip) {
    const int64_t saved = std::stoll(communicator_.broadcast(std::to_string(wait_for_saved_step())));
    const bool back = decision.action == AnomalyAction::roll_back && saved > 0;
    if (!back) {
      fail_run("train", "step {}: {}; training stops before this step changes the weights{}, {}", number,
               decision.problem, decision.limit.empty() ? "" : " (" + decision.limit + ")",
               saved > 0 ? fmt::format("the last checkpoint is from step {}", saved) : "no checkpoint exists yet");
    }
    log::warn("step {}: {}; returning to the last checkpoint and skipping the data since then (roll back {} of {})",
              number, decision.problem, state_.anomalies.rolled_back, config_.anomalies.max_roll_backs);
  }
  return decision.action;
}

CheckpointStore::Checkpoint Trainer::find_roll_back_checkpoint() {
  CheckpointStore& store = folder_->checkpoints();
  const int64_t newest = writer_.saved();
  if (verified_step_ < newest && store.steps().size() > 1)
    store.mark_damaged(newest, "no training step after this checkpoint succeeded");
  auto found = store.newest_valid();
  if (!found) fail_run("train", "step {}: no checkpoint is left to roll back to", state_.step + 1);
  return load_weights(std::move(*found));
}

void Trainer::roll_back(int64_t sequences) {
  const int64_t rolled_back = state_.anomalies.rolled_back;
  const double spent = seconds();
  data_parallel_->zero_grad();
  std::optional<CheckpointStore::Checkpoint> found;
  if (communicator_.is_rank0()) found = find_roll_back_checkpoint();
  resume_from(*broadcast_checkpoint(std::move(found)));
  state_.sequences = sequences;
  state_.anomalies.rolled_back = rolled_back;
  state_.anomalies.skipped_in_a_row = 0;
  state_.seconds = spent;
  begin_ = Clock::now();
  validation_step_ = -1;
  if (folder_) {
    // Stored at once, so that a run that is killed now resumes after the skipped data and with the correct number of
    // roll backs.
    folder_->checkpoints().rewrite_state(state_);
    log_.emplace(folder_->path(), state_.step, config_.tensorboard);
  }
  log::info("training continues from step {}", state_.step);
}

int64_t Trainer::wait_for_saved_step() {
  try {
    wait_for_writer();
  } catch (const Error& e) {
    log::warn("{}", e.what());
  }
  return writer_.saved();
}

}  // namespace lazy::train
