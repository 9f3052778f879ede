#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/tokenizer.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "train/batches.h"
#include "train/description.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/throughput.h"
#include "train/validation.h"

namespace lazy::train {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kRandomState = "random_state.cpu";

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

at::Generator cpu_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

class Trainer {
 public:
  Trainer(const TrainConfig& config, bool resume);
  TrainResult run();

 private:
  struct StepResult {
    double loss = 0, gradient_norm = 0, rate = 0;  // loss: nats a token, mean of the step
    double seconds = 0, data_seconds = 0;
  };
  // Sums over the steps since the last logged one.
  struct Interval {
    double seconds = 0, data_seconds = 0;
    int64_t steps = 0;
  };

  void resume_from(const CheckpointStore::Found& found);
  bool step(Batches& batches, StepResult& result);
  void check_finite(const StepResult& result) const;
  void validate();
  void write_log(const StepResult& result, Interval& interval, bool attention);
  void write_model(const fs::path& folder, const std::string& dtype) const;
  void save_checkpoint();
  TrainResult finish();
  double seconds() const { return state_.seconds + seconds_since(begin_); }
  bool due(int64_t every) const { return every > 0 && (state_.step % every == 0 || state_.step == config_.steps); }
  std::string note(const StepResult& result) const;

  TrainConfig config_;
  Sequences sequences_;
  std::optional<Sequences> held_out_;
  std::unique_ptr<Tokenizer> tokenizer_;
  RunFolder folder_;
  std::optional<LanguageModel> model_;
  std::optional<AdamW> optimizer_;
  std::optional<MetricsLog> log_;
  TrainState state_;  // state_.seconds is the time before this process
  Clock::time_point begin_ = Clock::now();
  int64_t saved_step_ = 0;
  std::optional<double> validation_;  // nats a token, of validation_step_
  int64_t validation_step_ = -1;
};

Trainer::Trainer(const TrainConfig& config, bool resume)
    : config_(config),
      sequences_(config.corpus, config.train_split, config.sequences),
      tokenizer_(load_tokenizer(sequences_.tokenizer_path().string())),
      folder_(config_ = with_corpus(config, sequences_, *tokenizer_), resume) {
  if (sequences_.size() == 0) {
    fail("train", "{}: the {} split is too small for one sequence of {} tokens", config_.corpus.string(), config_.train_split,
         config_.seq_len);
  }
  if (config_.validation_every > 0 || config_.attention_every > 0) {
    SequenceOptions options = config_.sequences;
    options.shuffle = false;
    held_out_.emplace(config_.corpus, config_.validation_split, options);
    if (held_out_->size() == 0) {
      fail("train", "{}: the {} split is too small for one sequence of {} tokens; set validation.every and metrics.attention_every to 0",
           config_.corpus.string(), config_.validation_split, config_.seq_len);
    }
  }
  at::manual_seed(config_.seed);
  model_.emplace(config_.model, config_.seed);
  model_->set_tokenizer_fingerprint(sequences_.tokenizer_fingerprint());
  optimizer_.emplace(model_->parameters(), config_.optimizer);
  if (const auto& found = folder_.found()) resume_from(*found);
  model_->set_compute_dtype(config_.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  state_.settings = run_settings(config_, sequences_);
}

void Trainer::resume_from(const CheckpointStore::Found& found) {
  const std::string file = (found.path / "state.json").string();
  compare_settings(found.state.settings, run_settings(config_, sequences_), file);
  state_ = found.state;
  saved_step_ = state_.step;
  model_->load_weights(found.path);
  const fs::path optimizer_file = found.path / "optimizer.safetensors";
  auto tensors = read_safetensors(optimizer_file);
  const auto random = tensors.extract(kRandomState);
  if (random.empty()) fail("checkpoint", "{}: missing tensor '{}'", optimizer_file.string(), kRandomState);
  cpu_generator().set_state(random.mapped());
  optimizer_->load_state(tensors, optimizer_file.string());
}

TrainResult Trainer::run() {
  if (state_.step >= config_.steps) {
    log::info("{}: step {} of {} is reached, nothing to train", folder_.path().string(), state_.step, config_.steps);
    if (folder_.has_model()) return {state_.step, folder_.path() / "model"};
    return finish();
  }
  folder_.describe(config_, run_facts(config_, sequences_, *tokenizer_));
  log_.emplace(folder_.path(), state_.step, config_.tensorboard);
  if (state_.step > 0) log::info("resuming {} at step {} of {}", folder_.path().string(), state_.step, config_.steps);
  const auto count = count_parameters(config_.model);
  log::info("{}: {} parameters, {} steps of {} tokens, {} on {} with {} threads", config_.name,
            human_count(static_cast<double>(count.total)), config_.steps, config_.tokens_per_step(), config_.dtype, config_.device,
            at::get_num_threads());
  Batches batches(sequences_, state_.sequences, config_.batch_size, config_.seq_len, config_.prefetch);
  Progress progress("train", static_cast<uint64_t>(config_.steps * config_.tokens_per_step()), "tokens",
                    static_cast<uint64_t>(state_.step * config_.tokens_per_step()));
  Interval interval;
  StepResult result;
  while (state_.step < config_.steps && step(batches, result)) {
    interval.seconds += result.seconds;
    interval.data_seconds += result.data_seconds;
    ++interval.steps;
    const bool attention = due(config_.attention_every);
    if (due(config_.validation_every)) validate();
    if (state_.step == 1 || due(config_.log_every) || attention || validation_step_ == state_.step) {
      write_log(result, interval, attention);
    }
    progress.update(static_cast<uint64_t>(state_.step * config_.tokens_per_step()), note(result));
    if (due(config_.checkpoint_every) && !stop_requested()) save_checkpoint();
  }
  if (state_.step > saved_step_) save_checkpoint();
  if (stop_requested()) {
    throw Interrupted(fmt::format("train: stopped by {} after step {} of {}; {}", stop_signal() == SIGINT ? "SIGINT" : "SIGTERM",
                                  state_.step, config_.steps,
                                  state_.step > 0 ? fmt::format("the state is saved in {}, --resume continues",
                                                                folder_.checkpoints().path(state_.step).string())
                                                  : "there was nothing to save yet"),
                      stop_signal());
  }
  progress.finish(note(result));
  return finish();
}

// One optimizer step. False when a signal came first: what was accumulated is dropped, the state is that of the step
// before, and a resumed run repeats these batches.
bool Trainer::step(Batches& batches, StepResult& result) {
  const auto begin = Clock::now();
  result = {};
  for (int64_t micro = 0; micro < config_.accumulation; ++micro) {
    if (stop_requested()) {
      optimizer_->drop_gradients();
      return false;
    }
    const auto waiting = Clock::now();
    const Batch batch = batches.next();
    result.data_seconds += seconds_since(waiting);
    at::Tensor loss = model_->loss(batch.ids, batch.labels);
    if (config_.accumulation > 1) loss = loss / static_cast<double>(config_.accumulation);
    loss.backward();
    result.loss += loss.item<double>();
  }
  result.gradient_norm = optimizer_->gradient_norm();
  check_finite(result);
  result.rate = config_.schedule.rate(state_.step);
  optimizer_->step(result.rate, result.gradient_norm, config_.max_norm);
  ++state_.step;
  state_.sequences += config_.accumulation * config_.batch_size;
  state_.tokens += config_.tokens_per_step();
  result.seconds = seconds_since(begin);
  return true;
}

void Trainer::check_finite(const StepResult& result) const {
  if (std::isfinite(result.loss) && std::isfinite(result.gradient_norm)) return;
  fail_run("train", "step {}: {} is {}; training stops before this step changes the weights, {}", state_.step + 1,
           std::isfinite(result.loss) ? "the gradient norm" : "the loss",
           std::abs(std::isfinite(result.loss) ? result.gradient_norm : result.loss),  // NaN without a sign
           saved_step_ > 0 ? fmt::format("the last checkpoint is that of step {}", saved_step_) : "there is no checkpoint yet");
}

void Trainer::validate() {
  const auto loss = validation_loss(*model_, *held_out_, config_.seq_len, config_.batch_size, config_.validation_batches);
  if (!loss) return;
  validation_ = loss;
  validation_step_ = state_.step;
}

void Trainer::write_log(const StepResult& result, Interval& interval, bool attention) {
  const double steps = static_cast<double>(interval.steps);
  const double tokens_per_second = steps * static_cast<double>(config_.tokens_per_step()) / interval.seconds;
  const double tflops = tokens_per_second * flops_per_token(config_.model, config_.seq_len) / 1e12;
  Scalars line{{"loss_metrics/global_avg_loss", result.loss}, {"grad_norm", result.gradient_norm}, {"lr", result.rate}};
  if (validation_step_ == state_.step) {
    line.emplace_back("validation_metrics/loss", *validation_);
    line.emplace_back("validation_metrics/bits_per_byte", bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  line.emplace_back("throughput(tps)", tokens_per_second);
  line.emplace_back("tflops", tflops);
  if (config_.peak_tflops > 0) line.emplace_back("mfu(%)", 100 * tflops / config_.peak_tflops);
  line.emplace_back("time_metrics/end_to_end(s)", interval.seconds / steps);
  line.emplace_back("time_metrics/data_loading(s)", interval.data_seconds / steps);
  line.emplace_back("memory/max_reserved(GiB)", peak_memory_gib());
  if (attention) {
    const auto statistics = attention_statistics(*model_, *held_out_, config_.seq_len, config_.batch_size);
    line.insert(line.end(), statistics.begin(), statistics.end());
  }
  log_->write(state_.step, state_.tokens, seconds(), line);
  interval = {};
}

std::string Trainer::note(const StepResult& result) const {
  std::string text = fmt::format("step {}/{} loss {:.4f}", state_.step, config_.steps, result.loss);
  if (validation_) {
    text += fmt::format(", held out {:.4f} ({:.4f} bits/byte)", *validation_, bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  return text;
}

void Trainer::write_model(const fs::path& folder, const std::string& dtype) const {
  model_->save(folder, dtype);
  tokenizer_->save(folder);
}

void Trainer::save_checkpoint() {
  log_->sync();
  TrainState state = state_;
  state.seconds = seconds();
  folder_.checkpoints().save(state, [&](const fs::path& folder) {
    write_model(folder, "fp32");
    NamedTensors tensors = optimizer_->state();
    tensors.emplace_back(kRandomState, cpu_generator().get_state());
    write_safetensors(folder / "optimizer.safetensors", tensors);
  });
  saved_step_ = state_.step;
}

TrainResult Trainer::finish() {
  const fs::path model = folder_.publish_model([&](const fs::path& folder) { write_model(folder, config_.export_dtype); });
  if (held_out_ && config_.validation_every > 0 && validation_step_ != state_.step) validate();
  std::string text = fmt::format("trained {} steps, {} tokens, in {}", state_.step, human_count(static_cast<double>(state_.tokens)),
                                 human_seconds(seconds()));
  if (validation_) {
    text += fmt::format("; held-out loss {:.4f} nats/token, {:.4f} bits/byte", *validation_,
                        bits_per_byte(*validation_, held_out_->bytes_per_token()));
  }
  log::info("{}; model: {}", text, model.string());
  return {state_.step, model};
}

}  // namespace

TrainResult train(const TrainConfig& config, bool resume) {
  // Moments of rarely seen words decay into denormal numbers, which cost a hundred cycles each. Threads inherit the
  // setting, so it comes before the first of them starts.
  at::globalContext().setFlushDenormal(true);
  return Trainer(config, resume).run();
}

}  // namespace lazy::train
