#include "train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
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
#include "train/checkpoint_pieces.h"
#include "train/checkpoint_writer.h"
#include "train/description.h"
#include "train/distributed/data_parallel.h"
#include "train/machine.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/sharded_checkpoint.h"
#include "train/shared_folder.h"
#include "train/snapshot.h"
#include "train/throughput.h"
#include "train/trace.h"
#include "train/validation.h"

namespace lazy::train {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kRandomState = "random_state.cpu";

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The GPU of this rank becomes the current one.
at::Device compute_device(const TrainConfig& config, const World& world) {
  if (config.device != "cuda") return at::kCPU;
  const int64_t count = device_count(config.device);
  if (world.local_rank >= count) {
    fail("train", "local rank {} needs a GPU of its own: expected at most {} ranks on this machine", world.local_rank, count);
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(world.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

at::Generator cpu_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

std::vector<Piece> with_tensors(std::vector<Piece> pieces, const NamedTensors& tensors) {
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].tensor = tensors[i].second;
  return pieces;
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, bool resume, Communicator& communicator, at::Device device);
  ~Trainer();
  TrainResult run();

 private:
  struct StepResult {
    double loss = 0, gradient_norm = 0, rate = 0;  // loss: nats a token, mean of the step
    double max_loss = 0;   // of the ranks' losses
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    bool skipped = false;  // the update was left out (training.on_nan, training.on_spike)
  };
  // Sums over the steps since the last logged one.
  struct Interval {
    double seconds = 0, data_seconds = 0, communication_seconds = 0;
    int64_t steps = 0;
  };

  void compare_ranks();
  std::optional<CheckpointStore::Found> checkpoint_to_resume();
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
  bool writes_together() const { return data_parallel_->sharded() && folder_shared_; }  // each rank its part of a checkpoint
  void validate();
  void write_log(const StepResult& result, Interval& interval, bool attention);
  void save_checkpoint();
  void write_checkpoint(const TrainState& state, const NamedTensors& weights, const std::vector<Piece>& optimizer, bool sharded);
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
  std::optional<DataParallel> data_parallel_;
  std::optional<AdamW> optimizer_;
  std::optional<MetricsLog> log_;
  TrainState state_;  // state_.seconds is the time before this process
  Clock::time_point begin_ = Clock::now();
  double checkpoint_blocked_ = 0;     // seconds that saving held training up since the last logged line
  std::optional<double> validation_;  // nats a token, of validation_step_
  int64_t validation_step_ = -1;
  int64_t saved_step_ = 0;            // whose checkpoint was begun last, on every rank
  int agreed_signal_ = 0;
  int64_t proven_step_ = 0;  // of the newest checkpoint after which a step has succeeded
  Snapshot weights_copy_, optimizer_copy_;
  CheckpointWriter writer_;  // last: it ends before what it writes from
};

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
  model_->to(device_);
  model_->set_deterministic(config_.deterministic);
  model_->set_checkpointing(checkpointing_from(config_.activation_checkpointing));
  model_->set_tokenizer_fingerprint(sequences_.tokenizer_fingerprint());
  data_parallel_.emplace(model_->parameters(), communicator_, sharding_from(config_.data_parallel));
  optimizer_.emplace(data_parallel_->optimized(), config_.optimizer);
  if (const auto found = checkpoint_to_resume()) resume_from(*found);
  model_->set_compute_dtype(config_.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  state_.settings = run_settings(config_, sequences_);
}

Trainer::~Trainer() {
  try {
    wait_for_writer();
  } catch (const std::exception&) {
    // What ended the run is on its way already.
  }
}

double Trainer::wait_for_writer() {
  std::optional<Communicator::Blocked> blocked;
  if (writes_together()) blocked.emplace(communicator_);
  return writer_.wait();
}

// All ranks must have been started with one configuration and one corpus.
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

// The weights of a checkpoint that is whole on disk. Where they are not finite it is set aside, and the one before it is
// taken. On the first rank.
CheckpointStore::Found Trainer::load_weights(CheckpointStore::Found found) {
  CheckpointStore& store = folder_->checkpoints();
  while (true) {
    compare_settings(found.state.settings, run_settings(config_, sequences_), (found.path / "state.json").string());
    try {
      model_->load_weights(found.path);
      return found;
    } catch (const Error& e) {
      store.set_aside(found.state.step, e.what());
      auto former = store.newest_usable();
      if (!former) fail("checkpoint", "no usable checkpoint is left ({}); without --resume a new run starts", e.what());
      found = std::move(*former);
    }
  }
}

// The first rank's, which the others may not be able to read; its weights are loaded there.
std::optional<CheckpointStore::Found> Trainer::checkpoint_to_resume() {
  const Communicator::Waiting waiting(communicator_, "the search for a checkpoint");
  std::optional<CheckpointStore::Found> found;
  if (folder_ && folder_->found()) found = load_weights(*folder_->found());
  if (communicator_.size() == 1) return found;
  const std::string text = communicator_.broadcast(found ? to_json(found->state).dump() : "");
  if (text.empty() || found) return found;
  return CheckpointStore::Found{{}, state_from_json(nlohmann::ordered_json::parse(text), "the first rank's state")};
}

// From a checkpoint whose weights the first rank has loaded.
void Trainer::resume_from(const CheckpointStore::Found& found) {
  state_ = found.state;
  saved_step_ = state_.step;
  writer_.resumed_at(state_.step);
  const fs::path folder = CheckpointStore(config_.output / "checkpoints", 0).path(state_.step);
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
  data_parallel_->broadcast_weights();
  if (!folder_shared_) tensors = data_parallel_->spread_state(std::move(tensors), folder.string());
  optimizer_->load_state(tensors, folder.string());
}

TrainResult Trainer::run() {
  if (state_.step >= config_.steps) {
    log::info("{}: step {} of {} is reached, nothing to train", config_.output.string(), state_.step, config_.steps);
    if (folder_ && folder_->has_model()) return {state_.step, folder_->path() / "model"};
    return finish();
  }
  if (folder_) {
    folder_->describe(config_, run_facts(config_, sequences_, *tokenizer_));
    log_.emplace(folder_->path(), state_.step, config_.tensorboard);
  }
  if (state_.step > 0) log::info("resuming {} at step {} of {}", config_.output.string(), state_.step, config_.steps);
  const auto count = count_parameters(config_.model);
  log::info("{}: {} parameters, {} steps of {} tokens, {} on {} with {} threads{}", config_.name,
            human_count(static_cast<double>(count.total)), config_.steps, config_.tokens_per_step(), config_.dtype, config_.device,
            at::get_num_threads(),
            config_.ranks > 1 ? fmt::format(", {} ranks ({})", config_.ranks, config_.data_parallel) : "");
  // Micro-batches of the stream go round the ranks, so that a step's tokens do not depend on how many these are.
  Batches batches(sequences_, state_.sequences + communicator_.rank() * config_.batch_size, config_.batch_size, config_.seq_len,
                  config_.prefetch, config_.ranks, device_.is_cuda());
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
    if (communicator_.first()) {
      const bool attention = due(config_.attention_every);
      if (due(config_.validation_every)) validate();
      if (state_.step == 1 || due(config_.log_every) || attention || validation_step_ == state_.step || result.skipped) {
        write_log(result, interval, attention);
      }
      progress->update(static_cast<uint64_t>(state_.step * config_.tokens_per_step()), note(result));
    }
    if (stopping()) break;
    // Not amid skipped steps: a run of them must not push out the last good one.
    if (due(config_.checkpoint_every) && !result.skipped) save_checkpoint();
  }
  if (state_.step > saved_step_) save_checkpoint();
  wait_for_writer();
  if (const int signal = stopping()) {
    throw Interrupted(fmt::format("train: stopped by {} after step {} of {}; {}", stop_signal_name(signal),
                                  state_.step, config_.steps,
                                  state_.step > 0 ? fmt::format("the state is saved in {}, --resume continues",
                                                                CheckpointStore(config_.output / "checkpoints", 0).path(state_.step).string())
                                                  : "there was nothing to save yet"),
                      signal);
  }
  if (progress) progress->finish(note(result));
  return finish();
}

// One optimizer step. False when a signal came first: what was accumulated is dropped, the state is that of the step
// before, and a resumed run repeats these batches.
bool Trainer::step(Batches& batches, StepResult& result) {
  const auto begin = Clock::now();
  result = {};
  communicator_.at_step(state_.step + 1);
  const double micro_batches = static_cast<double>(config_.ranks * config_.accumulation);
  std::vector<at::Tensor> losses;
  std::optional<Trace> trace;
  const int64_t number = state_.step + 1;
  if (communicator_.first() && std::count(config_.trace_steps.begin(), config_.trace_steps.end(), number) > 0) trace.emplace(device_);
  for (int64_t micro = 0; micro < config_.accumulation; ++micro) {
    if (stopping()) {
      optimizer_->drop_gradients();
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
  optimizer_->drop_gradients();
  data_parallel_->drop_gradients();
  ++state_.step;
  state_.sequences = sequences;
  state_.tokens += config_.tokens_per_step();
  result.seconds = seconds_since(begin);
  if (trace) trace->save(folder_->path() / "trace" / fmt::format("step-{:08d}.json", number));
  return true;
}

// The step's loss and gradient of all ranks together.
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
  const size_t losses = mine.size();        // from here on each rank's own mean
  mine.resize(losses + static_cast<size_t>(communicator_.size()), 0.0);
  mine[losses + static_cast<size_t>(communicator_.rank())] = result.loss * static_cast<double>(config_.ranks);
  const std::vector<double> sums = communicator_.sum(mine);
  result.max_loss = *std::max_element(sums.begin() + static_cast<std::ptrdiff_t>(losses), sums.end());
  result.loss = sums[0];
  if (sharded) result.gradient_norm = std::sqrt(sums[1]);
  if (sums[2] + sums[3] + sums[4] > 0) agreed_signal_ = sums[2] > 0 ? SIGINT : sums[3] > 0 ? SIGTERM : SIGUSR1;
  result.communication_seconds = seconds_since(begin);
}

// What to do with the update. Throws where the run is to stop, before the weights have changed.
FaultAction Trainer::check_step(const StepResult& result) {
  const Verdict verdict = judge(config_.faults, state_.faults, result.loss, result.gradient_norm);
  const int64_t number = state_.step + 1;
  if (verdict.action == FaultAction::skip) {
    log::warn("step {}: {}; its update is left out ({} in a row)", number, verdict.problem, state_.faults.skipped_in_a_row);
  }
  if (verdict.action != FaultAction::none && verdict.action != FaultAction::skip) {
    const int64_t saved = std::stoll(communicator_.broadcast(std::to_string(settled_checkpoint())));
    const bool back = verdict.action == FaultAction::roll_back && saved > 0;
    if (!back) {
      fail_run("train", "step {}: {}; training stops before this step changes the weights{}, {}", number, verdict.problem,
               verdict.limit.empty() ? "" : " (" + verdict.limit + ")",
               saved > 0 ? fmt::format("the last checkpoint is that of step {}", saved) : "there is no checkpoint yet");
    }
    log::warn("step {}: {}; back to the last checkpoint, the data since then is passed over (roll back {} of {})", number,
              verdict.problem, state_.faults.rolled_back, config_.faults.max_roll_backs);
  }
  return verdict.action;
}

// The optimizer's, of this rank's pieces; with ZeRO-2 the others' pieces follow.
void Trainer::update(StepResult& result) {
  optimizer_->step(result.rate, result.gradient_norm, config_.max_norm);
  proven_step_ = writer_.started();
  if (!data_parallel_->sharded()) return;
  const auto begin = Clock::now();
  const Communicator::Waiting others(communicator_, "gathering the weights");
  data_parallel_->gather_weights();
  result.communication_seconds += seconds_since(begin);
}

// The newest checkpoint that can be gone back to. One after which no step has succeeded is itself in doubt: the one before
// it is taken, if there is one. On the first rank.
CheckpointStore::Found Trainer::good_checkpoint() {
  CheckpointStore& store = folder_->checkpoints();
  const int64_t newest = writer_.saved();
  if (proven_step_ < newest && store.steps().size() > 1) store.set_aside(newest, "no step after it succeeded");
  auto found = store.newest_usable();
  if (!found) fail_run("train", "step {}: there is no checkpoint left to go back to", state_.step + 1);
  return load_weights(std::move(*found));
}

// Back to a checkpoint, on with the data from `sequences`.
void Trainer::roll_back(int64_t sequences) {
  const int64_t rolled_back = state_.faults.rolled_back;
  const double spent = seconds();
  optimizer_->drop_gradients();
  data_parallel_->drop_gradients();
  CheckpointStore::Found found;
  if (communicator_.first()) found = good_checkpoint();
  const std::string text = communicator_.broadcast(communicator_.first() ? to_json(found.state).dump() : "");
  if (!communicator_.first()) found.state = state_from_json(nlohmann::ordered_json::parse(text), "the first rank's state");
  resume_from(found);
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

// Step of the newest checkpoint when none is being written any more. What ended that one is told, but is not what the
// caller is about.
int64_t Trainer::settled_checkpoint() {
  try {
    wait_for_writer();
  } catch (const Error& e) {
    log::warn("{}", e.what());
  }
  return writer_.saved();
}

void Trainer::validate() {
  const auto loss = validation_loss(*model_, *held_out_, config_.seq_len, config_.batch_size, config_.validation_batches);
  if (!loss) return;
  validation_ = loss;
  validation_step_ = state_.step;
}

void Trainer::write_log(const StepResult& result, Interval& interval, bool attention) {
  const double steps = static_cast<double>(interval.steps);
  // Of one device, as torchtitan reports it.
  const double tokens_per_second = steps * static_cast<double>(config_.tokens_per_step() / config_.ranks) / interval.seconds;
  const double tflops = tokens_per_second * flops_per_token(config_.model, config_.seq_len) / 1e12;
  Scalars line{{"loss_metrics/global_avg_loss", result.loss},
               {"loss_metrics/global_max_loss", result.max_loss},
               {"grad_norm", result.gradient_norm}, {"lr", result.rate}};
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
  if (state_.faults.rolled_back > 0) line.emplace_back("faults/rolled_back", static_cast<double>(state_.faults.rolled_back));
  if (attention) {
    const auto statistics = attention_statistics(*model_, *held_out_, config_.seq_len, config_.batch_size);
    line.insert(line.end(), statistics.begin(), statistics.end());
  }
  if (checkpoint_blocked_ > 0) line.emplace_back("checkpoint/blocked(s)", std::exchange(checkpoint_blocked_, 0));
  if (const auto write = writer_.take_write_seconds()) line.emplace_back("checkpoint/write(s)", *write);
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

// The state is copied here and now; the disk takes it while training goes on (docs/configuration.md, [checkpoint]). Sharded
// state goes to it from each rank's own thread, or to the first rank where the others cannot write.
void Trainer::save_checkpoint() {
  const auto begin = Clock::now();
  saved_step_ = state_.step;
  const bool sharded = writes_together();
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
  NamedTensors weights;
  if (communicator_.first()) {
    weights = model_->stored();
    optimizer.emplace_back(kRandomState, cpu_generator().get_state());
  }
  const bool copy = config_.checkpoint_async;
  std::vector<Piece> pieces = data_parallel_->state_pieces(optimizer);
  if (copy) {
    NamedTensors held;
    for (const Piece& piece : pieces) held.emplace_back(piece.name, piece.tensor);
    weights_copy_.take(weights);
    optimizer_copy_.take(held);
    weights.clear();
    for (Piece& piece : pieces) piece.tensor.reset();
  }
  optimizer.clear();
  writer_.start(state.step, copy, [this, copy, sharded, state = std::move(state), weights = std::move(weights),
                                   pieces = std::move(pieces)] {
    write_checkpoint(state, copy ? weights_copy_.tensors() : weights, copy ? with_tensors(pieces, optimizer_copy_.tensors()) : pieces, sharded);
  });
  checkpoint_blocked_ += seconds_since(begin);
}

// In the writer's thread.
void Trainer::write_checkpoint(const TrainState& state, const NamedTensors& weights, const std::vector<Piece>& optimizer, bool sharded) {
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
  CheckpointStore others(config_.output / "checkpoints", 0);
  save_sharded(folder_ ? folder_->checkpoints() : others, state, communicator_.rank(), communicator_.size(), optimizer,
               [&](const fs::path& folder) {
                 prepare();
                 write_model(folder, "fp32");
               },
               [this](const std::string& failure) { return communicator_.agree(failure); });
}

TrainResult Trainer::finish() {
  if (!communicator_.first()) return {state_.step, {}};
  const fs::path model = folder_->publish_model("model", [&](const fs::path& folder) {
    model_->save(folder, config_.export_dtype);
    tokenizer_->save(folder);
  });
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
  // The profiler's library tells of every GPU it does not find. It reads this once.
  if (!config.trace_steps.empty() && config.device == "cpu") ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  // Moments of rarely seen words decay into denormal numbers, which cost a hundred cycles each. Threads inherit the
  // setting, so it comes before the first of them starts.
  at::globalContext().setFlushDenormal(true);
  const World world = world_from_environment();
  TrainConfig shared = config;
  shared.set_ranks(world.size);
  if (world.rank > 0) log::set_level(2);  // the first rank speaks for all
  const at::Device device = compute_device(config, world);
  Communicator communicator(world, device, std::chrono::milliseconds(static_cast<int64_t>(1000 * config.communication_timeout)));
  const auto of_rank = [&](const Error& e) { return world.rank == 0 ? e.what() : fmt::format("rank {}: {}", world.rank, e.what()); };
  try {
    TrainResult result = Trainer(shared, resume, communicator, device).run();
    communicator.finish();
    return result;
  } catch (const Interrupted& e) {
    communicator.finish();  // launchers kill the others when one ends, and the first may still be writing
    throw Interrupted(of_rank(e), e.exit_code() - 128);
  } catch (const Error& e) {
    communicator.announce(of_rank(e));
    if (e.exit_code() == 1) throw RunError(of_rank(e));
    throw Error(of_rank(e));
  } catch (const std::exception& e) {
    communicator.announce(fmt::format("rank {}: {}", world.rank, e.what()));
    throw;
  }
}

}  // namespace lazy::train
