// From a configuration to the loop, and to its end.
#include "train/loop/loop.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/progress.h"
#include "core/text.h"
#include "train/description.h"
#include "train/shared_folder.h"
#include "train/validation.h"

namespace lazy::train {
namespace fs = std::filesystem;

Trainer::Trainer(const TrainConfig& config, bool resume, Communicator& communicator, at::Device device)
    : config_(config),
      communicator_(communicator),
      device_(device),
      sequences_(config.corpus, config.train_split, config.sequences),
      tokenizer_(load_tokenizer(sequences_.tokenizer_path().string())) {
  config_ = with_corpus(config, sequences_, *tokenizer_);
  compare_ranks();
  if (communicator_.first()) folder_.emplace(config_, resume);
  folder_shared_ = is_shared_folder(config_.output / "checkpoints", communicator_);
  if (sequences_.size() == 0) {
    fail("train", "{}: the {} split is too small for one sequence of {} tokens", config_.corpus.string(),
         config_.train_split, config_.seq_len);
  }
  if (config_.validation_every > 0 || config_.attention_every > 0) {
    SequenceOptions options = config_.sequences;
    options.shuffle = false;
    held_out_.emplace(config_.corpus, config_.validation_split, options);
    if (held_out_->size() == 0) {
      fail("train",
           "{}: the {} split is too small for one sequence of {} tokens; set validation.every and "
           "metrics.attention_every to 0",
           config_.corpus.string(), config_.validation_split, config_.seq_len);
    }
  }
  at::manual_seed(config_.seed);
  model_.emplace(config_.model, config_.seed);
  model_->to(device_);
  model_->set_deterministic(config_.deterministic);
  model_->set_checkpointing(checkpointing_from(config_.activation_checkpointing));
  model_->set_tokenizer_fingerprint(sequences_.tokenizer_fingerprint());
  model_->set_compute_dtype(config_.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  data_parallel_.emplace(*model_, communicator_, sharding_from(config_.data_parallel));
  optimizer_.emplace(data_parallel_->optimized(), config_.optimizer,
                     [this](const std::string& name) { return model_->decays(name); });
  if (const auto found = checkpoint_to_resume()) resume_from(*found);
  state_.settings = run_settings(config_, sequences_);
}

Trainer::~Trainer() {
  try {
    wait_for_writer();
  } catch (const std::exception&) {
    // What ended the run is on its way already.
  }
}

void Trainer::compare_ranks() {
  if (communicator_.size() == 1) return;
  const Communicator::Waiting waiting(communicator_, "comparing the configurations");
  auto here = run_settings(config_, sequences_);
  here["training.data_parallel"] = config_.data_parallel;
  const auto first = nlohmann::ordered_json::parse(communicator_.broadcast(here.dump()));
  for (const auto& [key, value] : here.items()) {
    if (key != "threads" && value != first[key]) {
      fail("distributed", "{} = {} here, {} on the first rank", key, value.dump(), first[key].dump());
    }
  }
}

TrainResult Trainer::run() {
  if (state_.step >= config_.steps) {
    log::info("{}: step {} of {} is reached, nothing to train", config_.output.string(), state_.step, config_.steps);
    // The ranks do this together.
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
            human_count(static_cast<double>(count.total)), config_.steps, config_.tokens_per_step(), config_.dtype,
            config_.device, at::get_num_threads(),
            config_.ranks > 1 ? fmt::format(", {} ranks ({})", config_.ranks, config_.data_parallel) : "");
  // Micro-batches of the stream go round the ranks, so that a step's tokens do not depend on how many these are.
  Batches batches(sequences_, state_.sequences + communicator_.rank() * config_.batch_size, config_.batch_size,
                  config_.seq_len, config_.prefetch, config_.ranks, device_.is_cuda());
  std::optional<Progress> progress;
  if (communicator_.first()) {
    progress.emplace("train", static_cast<uint64_t>(config_.steps * config_.tokens_per_step()), "tokens",
                     static_cast<uint64_t>(state_.step * config_.tokens_per_step()));
  }
  Interval interval;
  StepResult result;
  while (state_.step < config_.steps && step(batches, result)) {
    interval.seconds += result.seconds;
    interval.data_seconds += result.data_seconds;
    interval.communication_seconds += result.communication_seconds;
    ++interval.steps;
    Scalars attention;
    if (evaluates()) {
      if (due(config_.validation_every)) validate();
      if (due(config_.attention_every)) {
        attention = attention_statistics(*model_, *held_out_, config_.seq_len, config_.batch_size);
      }
    }
    if (communicator_.first()) {
      const bool measured = !attention.empty() || validation_step_ == state_.step;
      if (state_.step == 1 || due(config_.log_every) || measured || result.skipped)
        write_log(result, interval, attention);
      progress->update(static_cast<uint64_t>(state_.step * config_.tokens_per_step()), note(result));
    }
    if (stopping()) break;
    // Not amid skipped steps: a run of them must not push out the last good one.
    if (due(config_.checkpoint_every) && !result.skipped) save_checkpoint();
  }
  if (state_.step > saved_step_) save_checkpoint();
  wait_for_writer();
  if (const int signal = stopping()) {
    throw Interrupted(fmt::format("train: stopped by {} after step {} of {}; {}", stop_signal_name(signal), state_.step,
                                  config_.steps,
                                  state_.step > 0 ? fmt::format("the state is saved in {}, --resume continues",
                                                                checkpoint_folder(state_.step).string())
                                                  : "there was nothing to save yet"),
                      signal);
  }
  if (progress) progress->finish(note(result));
  return finish();
}

TrainResult Trainer::finish() {
  fs::path model;
  {
    const NamedTensors weights = whole_weights("collecting the model");
    if (communicator_.first()) {
      model = folder_->publish_model("model", [&](const fs::path& folder) {
        model_->save(folder, config_.export_dtype, weights);
        tokenizer_->save(folder);
      });
    }
  }
  if (evaluates() && held_out_ && config_.validation_every > 0 && validation_step_ != state_.step) validate();
  if (!communicator_.first()) return {state_.step, {}};
  std::string text = fmt::format("trained {} steps, {} tokens, in {}", state_.step,
                                 human_count(static_cast<double>(state_.tokens)), human_seconds(seconds()));
  if (validation_) {
    text += fmt::format("; held-out loss {:.4f} nats/token, {:.4f} bits/byte", *validation_,
                        bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  log::info("{}; model: {}", text, model.string());
  return {state_.step, model};
}

std::string Trainer::note(const StepResult& result) const {
  std::string text = fmt::format("step {}/{} loss {:.4f}", state_.step, config_.steps, result.loss);
  if (validation_) {
    text += fmt::format(", held out {:.4f} ({:.4f} bits/byte)", *validation_,
                        bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  return text;
}

}  // namespace lazy::train
