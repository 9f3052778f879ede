// What a run says of itself while it goes.
#include "train/loop/loop.h"

#include "train/description.h"
#include "train/memory.h"
#include "train/throughput.h"
#include "train/validation.h"

namespace lazy::train {

void Trainer::validate() {
  // A rank that stops on its own would leave the others waiting.
  const bool stops = !data_parallel_->fully_sharded();
  const auto loss =
      validation_loss(*model_, *held_out_, config_.seq_len, config_.batch_size, config_.validation_batches, stops);
  if (!loss) return;
  validation_ = loss;
  validation_step_ = state_.step;
}

void Trainer::write_log(const StepResult& result, Interval& interval, const Scalars& attention) {
  const double steps = static_cast<double>(interval.steps);
  // Of one device, as torchtitan reports it.
  const double tokens_per_second =
      steps * static_cast<double>(config_.tokens_per_step() / config_.ranks) / interval.seconds;
  const double tflops = tokens_per_second * flops_per_token(config_.model, config_.seq_len) / 1e12;
  Scalars line{{"loss_metrics/global_avg_loss", result.loss},
               {"loss_metrics/global_max_loss", result.max_loss},
               {"grad_norm", result.gradient_norm},
               {"lr", result.rate}};
  if (validation_step_ == state_.step) {
    line.emplace_back("validation_metrics/loss", *validation_);
    line.emplace_back("validation_metrics/bits_per_byte", bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  line.emplace_back("throughput(tps)", tokens_per_second);
  line.emplace_back("tflops", tflops);
  if (config_.peak_tflops > 0) line.emplace_back("mfu(%)", 100 * tflops / config_.peak_tflops);
  line.emplace_back("time_metrics/end_to_end(s)", interval.seconds / steps);
  line.emplace_back("time_metrics/data_loading(s)", interval.data_seconds / steps);
  line.emplace_back("time_metrics/data_loading(%)", 100 * interval.data_seconds / interval.seconds);
  if (config_.ranks > 1) line.emplace_back("time_metrics/communication(s)", interval.communication_seconds / steps);
  const Scalars data = data_position(sequences_, state_.sequences);
  line.insert(line.end(), data.begin(), data.end());
  for (const auto& value : memory_use(device_)) line.push_back(value);
  if (state_.faults.skipped > 0) line.emplace_back("faults/skipped", static_cast<double>(state_.faults.skipped));
  if (state_.faults.rolled_back > 0)
    line.emplace_back("faults/rolled_back", static_cast<double>(state_.faults.rolled_back));
  line.insert(line.end(), attention.begin(), attention.end());
  if (checkpoint_blocked_ > 0) line.emplace_back("checkpoint/blocked(s)", std::exchange(checkpoint_blocked_, 0));
  if (const auto write = writer_.take_write_seconds()) line.emplace_back("checkpoint/write(s)", *write);
  log_->write(state_.step, state_.tokens, seconds(), line);
  interval = {};
}

}  // namespace lazy::train
