#include "train/training_loop.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>

#include "core/log.h"
#include "core/progress.h"
#include "core/terminal.h"
#include "core/text.h"
#include "distributed/launch.h"
#include "model/device.h"
#include "train/distributed_checkpoint.h"
#include "train/loss_lines.h"
#include "train/profiling.h"
#include "train/run_info.h"
#include "train/throughput.h"
#include "train/validation.h"

namespace lazy::train {

namespace fs = std::filesystem;

Trainer::Trainer(const TrainConfig& config, bool resume, Communicator& communicator, at::Device device)
    : config_(config),
      most_steps_(config.steps),
      communicator_(communicator),
      device_(device),
      resumes_(resume),
      sequences_(config.corpus, config.train_split, config.sequences),
      tokenizer_(load_tokenizer(sequences_.tokenizer_path().string())),
      kept_activations_(device) {
  config_ = with_corpus(config, sequences_, *tokenizer_);
  check_ranks_agree();
  if (communicator_.is_rank0()) folder_.emplace(config_, resume);
  folder_shared_ = is_shared_folder(config_.output / "checkpoints", communicator_);
  if (sequences_.size() == 0) {
    fail("train", "{}: the {} split is too small for one sequence of {} tokens", config_.corpus.string(),
         config_.train_split, config_.seq_len);
  }
  if (config_.validation_every > 0 || config_.attention_every > 0) {
    SequenceOptions options = config_.sequences;
    options.shuffle = false;
    validation_sequences_.emplace(config_.corpus, config_.validation_split, options);
    if (validation_sequences_->size() == 0) {
      fail("train",
           "{}: the {} split is too small for one sequence of {} tokens; set validation.every and "
           "metrics.attention_every to 0",
           config_.corpus.string(), config_.validation_split, config_.seq_len);
    }
  }
  at::manual_seed(config_.seed);
  if (config_.from.empty()) {
    model_.emplace(config_.model, config_.seed);
  } else {
    if (communicator_.is_rank0()) log::info("loading the model from {}", config_.from.string());
    model_.emplace(LanguageModel::load(config_.from, config_.model));
  }
  model_->to(device_);
  model_->set_deterministic(config_.deterministic);
  model_->set_checkpointing(checkpointing_from(config_.activation_checkpointing));
  model_->set_tokenizer_fingerprint(sequences_.tokenizer_fingerprint());
  model_->set_compute_dtype(config_.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  if (config_.fp8) {
    require_fp8(config_.device);
    model_->set_fp8(true);
  }
  data_parallel_.emplace(*model_, communicator_, distributed::sharding_from(config_.data_parallel));
  optimizer_.emplace(data_parallel_->optimizer_parameters(), config_.optimizer,
                     [this](const std::string& name) { return model_->decays(name); });
  if (const auto found = find_resume_checkpoint()) {
    resume_from(*found);
  } else {
    shift_offsets(0);
    if (config_.offset_schedule.used) data_parallel_->weights_updated();
  }
  state_.settings = run_settings(config_, sequences_);
}

Trainer::~Trainer() {
  try {
    wait_for_writer();
  } catch (const std::exception&) {
    // Ignored: wait_for_writer() can only throw here if the run has already ended with an earlier exception.
  }
}

void Trainer::check_ranks_agree() {
  if (communicator_.size() == 1) return;
  const Communicator::WaitScope wait_scope(communicator_, "comparing the configurations");
  auto here = run_settings(config_, sequences_);
  here["training.data_parallel"] = config_.data_parallel;
  const auto first = nlohmann::ordered_json::parse(communicator_.broadcast(here.dump()));
  for (const auto& [key, value] : here.items()) {
    if (key != "threads" && value != first[key]) {
      fail("distributed", "{} = {} on this rank, but {} on rank 0; all ranks need the same configuration", key,
           value.dump(), first[key].dump());
    }
  }
}

// Implements training.minutes. Limits the number of steps to the number that fits in the remaining time, up to
// training.steps, and sets the end of the learning rate schedule to this number. Does nothing during the warm-up,
// because the first steps are slow and the learning rate does not depend on the number of steps yet.
void Trainer::keep_to_time(double seconds) {
  if (config_.minutes == 0) return;
  const double left = seconds_for_steps() - seconds;
  int64_t fitting = 0;
  if (left > 0) {
    if (state_.step <= config_.schedule.warmup_steps) return;
    // The measurement starts in the first call, and again in the first call after a roll back.
    if (timed_from_step_ < 0 || state_.step <= timed_from_step_) {
      timed_from_step_ = state_.step;
      timed_from_seconds_ = seconds;
      return;
    }
    const double each = (seconds - timed_from_seconds_) / static_cast<double>(state_.step - timed_from_step_);
    fitting = static_cast<int64_t>(left / each);
  }
  config_.steps = config_.schedule.steps = std::min(most_steps_, state_.step + fitting);
}

TrainResult Trainer::run() {
  // A resumed run has ended if the remaining time is too short for one more step.
  if (config_.minutes > 0 && state_.step > 0) {
    const double spent = communicator_.sum({seconds()})[0] / static_cast<double>(communicator_.size());
    if (seconds_for_steps() - spent < spent / static_cast<double>(state_.step)) config_.steps = state_.step;
  }
  if (state_.step >= config_.steps) {
    log::info("{}: step {} of {} is already reached, nothing to train", config_.output.string(), state_.step,
              config_.steps);
    // All ranks must take the same branch, so rank 0 tells the other ranks whether the model folder is complete.
    const bool complete = !communicator_.broadcast(folder_ && folder_->has_model() ? "complete" : "").empty();
    if (complete) return {state_.step, folder_ ? folder_->path() / "model" : fs::path()};
    return finish();
  }
  if (folder_) {
    folder_->describe(config_, run_facts(config_, sequences_, *tokenizer_));
    log_.emplace(folder_->path(), state_.step, config_.tensorboard);
  }
  if (state_.step > 0) log::info("resuming {} at step {} of {}", config_.output.string(), state_.step, config_.steps);
  const auto count = count_parameters(config_.model);
  log::info("{}: {} parameters, {} steps of {} tokens, {} on {} with {} threads{}", config_.name,
            human_count(static_cast<double>(count.total)), config_.steps, config_.tokens_per_step(),
            config_.fp8 ? "fp8" : config_.dtype, config_.device, at::get_num_threads(),
            config_.ranks > 1 ? fmt::format(", {} ranks ({})", config_.ranks, config_.data_parallel) : "");
  if (config_.ranks > 1 && config_.global_batch_tokens == 0) {
    log::info(
        "a step has {} tokens, {} times as many as on one rank; set training.global_batch_tokens = {} for steps of the "
        "same size as on one rank",
        config_.tokens_per_step(), config_.ranks, config_.tokens_per_step() / config_.ranks);
  }
  // The ranks read the micro-batches of the stream alternately, so that a step has the same tokens for any number of
  // ranks.
  Batches batches(sequences_, state_.sequences + communicator_.rank() * config_.batch_size, config_.batch_size,
                  config_.seq_len, config_.prefetch, config_.ranks, device_.is_cuda());
  std::optional<Progress> progress;
  if (communicator_.is_rank0()) {
    progress.emplace("train", static_cast<uint64_t>(config_.steps * config_.tokens_per_step()), "tokens",
                     static_cast<uint64_t>(state_.step * config_.tokens_per_step()));
  }
  LossLines loss_lines;
  const bool terminal = is_terminal(STDERR_FILENO);
  LogInterval interval;
  StepResult result;
  while (state_.step < config_.steps && step(batches, result)) {
    interval.seconds += result.seconds;
    interval.data_seconds += result.data_seconds;
    interval.communication_seconds += result.communication_seconds;
    ++interval.steps;
    keep_to_time(agreed_seconds_);
    Scalars attention;
    if (evaluates()) {
      if (due(config_.validation_every)) validate();
      if (due(config_.attention_every)) {
        attention = attention_statistics(*model_, *validation_sequences_, config_.seq_len, config_.batch_size);
      }
    }
    if (communicator_.is_rank0()) {
      const bool measured = !attention.empty() || validation_step_ == state_.step;
      if (state_.step == 1 || due(config_.log_every) || measured || result.skipped)
        write_log(result, interval, attention);
      progress->set_total(static_cast<uint64_t>(config_.steps * config_.tokens_per_step()));
      if (config_.minutes > 0) progress->set_max_seconds_left(std::max(0.0, seconds_for_steps() - agreed_seconds_));
      if (terminal && loss_lines.due(seconds_since(begin_))) log::info("{}", progress_text(result));
      progress->update(static_cast<uint64_t>(state_.step * config_.tokens_per_step()), progress_text(result));
    }
    if (stopping()) break;
    // No checkpoint is saved after a skipped step, because keep_last might then remove the last good checkpoint.
    if (due(config_.checkpoint_every) && !result.skipped) save_checkpoint();
  }
  if (progress && state_.step >= config_.steps) {
    progress->finish(progress_text(result));
    log::info("training is complete; writing the checkpoint and the model");
  }
  if (state_.step > saved_step_) save_checkpoint();
  wait_for_writer();
  if (const int signal = stopping()) throw Interrupted(stopped_message(signal), signal);
  return finish();
}

// If the run was started with --resume, the message does not recommend --resume, because the user or `lazy uptrain`
// already knows this option.
std::string Trainer::stopped_message(int signal) const {
  const std::string what =
      fmt::format("train: stopped by {} after step {} of {}", stop_signal_name(signal), state_.step, config_.steps);
  if (state_.step == 0) return what + "; no step was finished, so nothing was saved";
  const bool complete = state_.step >= config_.steps;
  std::string text = fmt::format("{}{}; the state is saved in {}", what,
                                 complete ? ": training is complete, but the model has not been written yet" : "",
                                 checkpoint_folder(state_.step).string());
  if (!resumes_) text += complete ? "; --resume writes the model" : "; continue with --resume";
  return text;
}

TrainResult Trainer::finish() {
  fs::path model;
  {
    const NamedTensors weights = gather_full_weights("gathering the model");
    if (communicator_.is_rank0()) {
      model = folder_->publish_model(
          "model", [&](const fs::path& folder) { write_model(folder, config_.export_dtype, weights); });
    }
  }
  if (evaluates() && validation_sequences_ && config_.validation_every > 0 && validation_step_ != state_.step)
    validate();
  if (!communicator_.is_rank0()) return {state_.step, {}};
  std::string text =
      fmt::format("trained {} steps{}, {} tokens, in {}", state_.step,
                  state_.step < most_steps_ ? fmt::format(" of {}, limited by training.minutes", most_steps_) : "",
                  human_count(static_cast<double>(state_.tokens)), human_seconds(seconds()));
  if (validation_loss_) {
    text += fmt::format("; held-out loss {:.4f} nats/token, {:.4f} bits/byte", *validation_loss_,
                        bits_per_byte(*validation_loss_, validation_sequences_->bytes_per_token()));
  }
  log::info("{}; model: {}", text, model.string());
  return {state_.step, model};
}

std::string Trainer::progress_text(const StepResult& result) const {
  std::string text = fmt::format("step {}/{} loss {:.4f}", state_.step, config_.steps, result.loss);
  if (validation_loss_) {
    text += fmt::format(", held out {:.4f} ({:.4f} bits/byte)", *validation_loss_,
                        bits_per_byte(*validation_loss_, validation_sequences_->bytes_per_token()));
  }
  return text;
}

void Trainer::validate() {
  // Under full sharding all ranks must run the same collectives, so no rank may stop early.
  const bool stops = !data_parallel_->fully_sharded();
  const auto loss = validation_loss(*model_, *validation_sequences_, config_.seq_len, config_.batch_size,
                                    config_.validation_batches, stops);
  if (!loss) return;
  validation_loss_ = loss;
  validation_step_ = state_.step;
}

void Trainer::write_log(const StepResult& result, LogInterval& interval, const Scalars& attention) {
  const double steps = static_cast<double>(interval.steps);
  // The throughput is per device, as in torchtitan.
  const double tokens_per_second =
      steps * static_cast<double>(config_.tokens_per_step() / config_.ranks) / interval.seconds;
  const double tflops = tokens_per_second * flops_per_token(config_.model, config_.seq_len) / 1e12;
  Scalars line{{"loss_metrics/global_avg_loss", result.loss},
               {"loss_metrics/global_max_loss", result.max_loss},
               {"grad_norm", result.gradient_norm},
               {"lr", result.learning_rate}};
  if (validation_step_ == state_.step) {
    line.emplace_back("validation_metrics/loss", *validation_loss_);
    line.emplace_back("validation_metrics/bits_per_byte",
                      bits_per_byte(*validation_loss_, validation_sequences_->bytes_per_token()));
  }
  line.emplace_back("throughput(tps)", tokens_per_second);
  line.emplace_back("tflops", tflops);
  if (config_.peak_tflops > 0) line.emplace_back("mfu(%)", 100 * tflops / config_.peak_tflops);
  line.emplace_back("time_metrics/end_to_end(s)", interval.seconds / steps);
  line.emplace_back("time_metrics/data_loading(s)", interval.data_seconds / steps);
  line.emplace_back("time_metrics/data_loading(%)", 100 * interval.data_seconds / interval.seconds);
  if (config_.ranks > 1) line.emplace_back("time_metrics/communication(s)", interval.communication_seconds / steps);
  const Scalars data = data_progress(sequences_, state_.sequences);
  line.insert(line.end(), data.begin(), data.end());
  for (const auto& value : memory_use(device_)) line.push_back(value);
  if (state_.anomalies.skipped > 0) line.emplace_back("faults/skipped", static_cast<double>(state_.anomalies.skipped));
  if (state_.anomalies.rolled_back > 0)
    line.emplace_back("faults/rolled_back", static_cast<double>(state_.anomalies.rolled_back));
  line.insert(line.end(), attention.begin(), attention.end());
  if (checkpoint_seconds_ > 0) line.emplace_back("checkpoint/blocked(s)", std::exchange(checkpoint_seconds_, 0));
  if (const auto write = writer_.take_write_seconds()) line.emplace_back("checkpoint/write(s)", *write);
  log_->write(state_.step, state_.tokens, seconds(), line);
  interval = {};
}

TrainResult train(const TrainConfig& config, bool resume) {
  // Kineto, the library of PyTorch's profiler, logs errors on machines without a GPU unless this variable is set. It
  // reads the variable only once, at its first use.
  if (!config.trace_steps.empty() && config.device == "cpu") ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  // The optimizer's moments for the embeddings of rare tokens decay to denormal numbers, which slow down a CPU. They
  // are flushed to zero. Threads inherit this setting, so it must be made before the first thread starts.
  at::globalContext().setFlushDenormal(true);
  const distributed::RankInfo info = distributed::rank_info_from_environment();
  TrainConfig shared = config;
  shared.set_ranks(info.size);
  const std::chrono::milliseconds timeout(static_cast<int64_t>(1000 * config.communication_timeout));
  TrainResult result;
  distributed::run_as_rank(info, shared.device, timeout, [&](Communicator& communicator, at::Device device) {
    result = Trainer(shared, resume, communicator, device).run();
  });
  return result;
}

}  // namespace lazy::train
