// One optimizer step.
#include "train/loop/loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "train/trace.h"

namespace lazy::train {

bool Trainer::step(Batches& batches, StepResult& result) {
  const auto begin = Clock::now();
  result = {};
  communicator_.at_step(state_.step + 1);
  const double micro_batches = static_cast<double>(config_.ranks * config_.accumulation);
  std::vector<at::Tensor> losses;
  const double waited = data_parallel_->waited();
  std::optional<Trace> trace;
  const int64_t number = state_.step + 1;
  if (communicator_.first() && std::count(config_.trace_steps.begin(), config_.trace_steps.end(), number) > 0)
    trace.emplace(device_);
  for (int64_t micro = 0; micro < config_.accumulation; ++micro) {
    if (stopping()) {
      data_parallel_->drop_gradients();
      return false;
    }
    writer_.check();
    const auto waiting = Clock::now();
    const Batch batch = batches.next().to(device_);
    result.data_seconds += seconds_since(waiting);
    at::Tensor loss = model_->loss(batch.ids, batch.labels);
    if (micro_batches > 1) loss = loss / micro_batches;
    data_parallel_->backward_begins(micro + 1 == config_.accumulation);
    loss.backward();
    losses.push_back(loss.detach());
  }
  for (const at::Tensor& loss : losses) result.loss += loss.item<double>();  // here a GPU is waited for, once
  result.communication_seconds = data_parallel_->waited() - waited;
  reduce(result);
  const int64_t sequences = state_.sequences + config_.ranks * config_.accumulation * config_.batch_size;
  result.rate = config_.schedule.rate(state_.step);
  switch (check_step(result)) {
    case FaultAction::roll_back:
      roll_back(sequences);
      trace.reset();
      return step(batches, result);  // as often as training.max_roll_backs says
    case FaultAction::skip:
      result.skipped = true;
      break;
    default:
      update(result);
  }
  data_parallel_->drop_gradients();
  ++state_.step;
  state_.sequences = sequences;
  state_.tokens += config_.tokens_per_step();
  result.seconds = seconds_since(begin);
  if (trace) trace->save(folder_->path() / "trace" / fmt::format("step-{:08d}.json", number));
  return true;
}

void Trainer::reduce(StepResult& result) {
  const auto begin = Clock::now();
  const Communicator::Waiting waiting(communicator_, "the sum of the gradients");
  data_parallel_->finish_gradients();
  result.gradient_norm = optimizer_->gradient_norm();
  result.max_loss = result.loss;
  if (communicator_.size() == 1) return;
  const bool sharded = data_parallel_->sharded();  // then the norm is that of our pieces
  const int signal = stop_signal();
  std::vector<double> mine{result.loss, sharded ? result.gradient_norm * result.gradient_norm : 0,
                           signal == SIGINT ? 1.0 : 0.0, signal == SIGTERM ? 1.0 : 0.0, signal == SIGUSR1 ? 1.0 : 0.0};
  const size_t losses = mine.size();  // from here on each rank's own mean
  mine.resize(losses + static_cast<size_t>(communicator_.size()), 0.0);
  mine[losses + static_cast<size_t>(communicator_.rank())] = result.loss * static_cast<double>(config_.ranks);
  const std::vector<double> sums = communicator_.sum(mine);
  result.max_loss = *std::max_element(sums.begin() + static_cast<std::ptrdiff_t>(losses), sums.end());
  result.loss = sums[0];
  if (sharded) result.gradient_norm = std::sqrt(sums[1]);
  if (sums[2] + sums[3] + sums[4] > 0) agreed_signal_ = sums[2] > 0 ? SIGINT : sums[3] > 0 ? SIGTERM : SIGUSR1;
  result.communication_seconds += seconds_since(begin);
}

void Trainer::update(StepResult& result) {
  optimizer_->step(result.rate, result.gradient_norm, config_.max_norm);
  proven_step_ = writer_.started();
  if (!data_parallel_->sharded()) return;
  const auto begin = Clock::now();
  const Communicator::Waiting others(communicator_, "gathering the weights");
  data_parallel_->weights_changed();
  result.communication_seconds += seconds_since(begin);
}

}  // namespace lazy::train
