#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"
#include "data/sequences.h"
#include "distributed/data_parallel.h"
#include "distributed/launch.h"
#include "model/blocks/activation_budget.h"
#include "model/device.h"
#include "model/language_model.h"
#include "train/batches.h"
#include "train/optimizer.h"
#include "train/profiling.h"
#include "train/throughput.h"

namespace lazy::benchmarks {

namespace {

using Json = nlohmann::ordered_json;

// Measures times on a device. On a GPU, timestamps are recorded on the stream, not on the host that enqueues the work.
class DeviceClock {
 public:
  explicit DeviceClock(at::Device device) : device_(device) {}
  struct Moment {
    std::optional<c10::Event> event;
    std::chrono::steady_clock::time_point time;
  };
  Moment now() const {
    Moment moment{{}, std::chrono::steady_clock::now()};
    if (device_.is_cuda()) {
      moment.event.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
      moment.event->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device_));
    }
    return moment;
  }
  static double ms(const Moment& from, const Moment& to) {
    if (!from.event) return std::chrono::duration<double, std::milli>(to.time - from.time).count();
    to.event->synchronize();
    return from.event->elapsedTime(*to.event);
  }

 private:
  at::Device device_;
};

struct Parts {
  double data = 0, forward = 0, backward = 0, communication = 0, optimizer = 0;  // time of each part of a step in ms
};

class Training {
 public:
  Training(const TrainBenchmark& o, distributed::Communicator& communicator, at::Device device)
      : o_(o), device_(device), communicator_(communicator), model_(o.model, 42), kept_activations_(device) {
    model_.to(device_);
    model_.set_compute_dtype(o.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
    if (o.fp8) {
      require_fp8(o.device);
      model_.set_fp8(true);
    }
    model_.set_checkpointing(checkpointing_from(o.checkpointing));
    data_parallel_.emplace(model_, communicator_, distributed::sharding_from(o.data_parallel));
    optimizer_.emplace(data_parallel_->optimizer_parameters(), train::AdamWOptions{});
    if (o.corpus.empty()) {
      random_.ids = at::randint(0, o.model.vocab_size, {o.batch, o.length}, at::TensorOptions(at::kLong)).to(device_);
      random_.labels = at::roll(random_.ids, -1, 1);
    } else {
      read_from(o.corpus);
    }
  }

  // Runs one optimizer step in the same way as train/loop/step.cc. Returns the loss of this rank.
  double step(Parts* parts = nullptr) {
    const DeviceClock clock(device_);
    std::vector<DeviceClock::Moment> moments;
    at::Tensor loss;
    double data = 0;
    const double micro_batches = static_cast<double>(o_.accumulation * communicator_.size());
    for (int64_t micro = 0; micro < o_.accumulation; ++micro) {
      const auto waiting = lazy::Clock::now();
      const train::Batch batch = batches_ ? batches_->next().to(device_) : random_;
      data += 1000 * seconds_since(waiting);
      moments.push_back(clock.now());
      {
        const ActivationBudget::ForwardPass pass(kept_activations_);
        loss = model_.loss(batch.ids, batch.labels);
      }
      moments.push_back(clock.now());
      data_parallel_->begin_backward(micro + 1 == o_.accumulation);
      (micro_batches > 1 ? loss / micro_batches : loss).backward();
      moments.push_back(clock.now());
    }
    const auto reducing = clock.now();
    data_parallel_->finish_gradients();
    const auto reduced = clock.now();
    double norm = optimizer_->gradient_norm();
    if (data_parallel_->sharded()) norm = std::sqrt(communicator_.sum({norm * norm})[0]);
    optimizer_->step(1e-4, norm, 1.0);
    const auto updated = clock.now();
    data_parallel_->weights_updated();
    data_parallel_->zero_grad();
    kept_activations_.end_step();
    const auto end = clock.now();
    if (parts) {
      for (size_t n = 0; n < moments.size(); n += 3) {
        parts->forward += DeviceClock::ms(moments[n], moments[n + 1]);
        parts->backward += DeviceClock::ms(moments[n + 1], moments[n + 2]);
      }
      parts->data += data;
      parts->communication += DeviceClock::ms(reducing, reduced) + DeviceClock::ms(updated, end);
      parts->optimizer += DeviceClock::ms(reduced, updated);
    }
    return loss.item<double>();
  }
  at::Device device() const { return device_; }
  // Returns the total seconds that this rank waited for other ranks during forward and backward passes. Full sharding
  // gathers weights in these passes, so it waits there.
  double waited() const { return data_parallel_->seconds_waited(); }

 private:
  void read_from(const std::string& corpus) {
    SequenceOptions options;
    options.length = o_.length;
    sequences_.emplace(CorpusMix(corpus), "train", options);
    if (sequences_->vocab_size() > o_.model.vocab_size) {
      fail("bench train", "{}: the corpus has a vocabulary of {} tokens, more than the vocabulary of the model ({})",
           corpus, sequences_->vocab_size(), o_.model.vocab_size);
    }
    if (sequences_->size() == 0)
      fail("bench train", "{}: the corpus is too small for one sequence of {} tokens", corpus, o_.length);
    batches_.emplace(*sequences_, communicator_.rank() * o_.batch, o_.batch, o_.length, /*ahead=*/2,
                     communicator_.size(), device_.is_cuda());
  }

  TrainBenchmark o_;
  at::Device device_;
  distributed::Communicator& communicator_;
  LanguageModel model_;
  std::optional<distributed::DataParallel> data_parallel_;
  std::optional<train::AdamW> optimizer_;
  ActivationBudget kept_activations_;
  train::Batch random_;
  std::optional<Sequences> sequences_;
  std::optional<train::Batches> batches_;
};

// Profiles one step. Returns the kernels (on a CPU: the operators) in descending order of their total time.
Json profile_step(Training& training) {
  const bool gpu = training.device().is_cuda();
  train::Trace trace(training.device(), /*shapes=*/false);
  training.step();
  const auto result = trace.stop();
  struct Kernel {
    double ms = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Kernel> kernels;
  double all = 0;
  for (const auto& event : result->events()) {
    if (gpu != (event.deviceType() == c10::DeviceType::CUDA)) continue;
    if (!gpu && !event.name().starts_with("aten::") && !event.name().starts_with("lazy::")) continue;
    const double ms = static_cast<double>(event.durationNs()) / 1e6;
    Kernel& kernel = kernels[event.name()];
    kernel.ms += ms;
    ++kernel.calls;
    all += ms;
  }
  std::vector<std::pair<std::string, Kernel>> sorted(kernels.begin(), kernels.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  Json out = Json::array();
  for (const auto& [name, kernel] : sorted) out.push_back({{"name", name}, {"ms", kernel.ms}, {"calls", kernel.calls}});
  return {{"kernels", out}, {"kernels_ms", all}};
}

void print(const TrainBenchmark& o, const Json& result) {
  const auto number = [&](const char* key) { return result[key].get<double>(); };
  fmt::print("{}: {} parameters, {} x {} tokens x {}, {} on {}, checkpointing {}{}\n", o.name,
             human_count(number("parameters")), o.batch, o.length, o.accumulation,
             o.fp8 ? "fp8" : result["dtype"].get<std::string>(), result["device"].get<std::string>(), o.checkpointing,
             result["ranks"] == 1 ? "" : fmt::format(", {} ranks ({})", result["ranks"].get<int>(), o.data_parallel));
  fmt::print("  {:.0f} tokens/s{}   {:.1f} TFLOP/s{}   {:.2f} GiB   first step after {:.1f} s\n",
             number("tokens_per_second"), result["ranks"] == 1 ? "" : " per rank", number("tflops"),
             result.contains("mfu") ? fmt::format("   MFU {:.1f} %", 100 * number("mfu")) : "",
             number("peak_memory_bytes") / (1 << 30), number("first_step_seconds"));
  double host = number("step_ms");
  for (const char* part : {"data_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms"})
    host -= number(part);
  fmt::print(
      "  step {:.1f} ms = data {:.1f} + forward {:.1f} + backward {:.1f} + communication {:.1f} + optimizer {:.1f} + "
      "host {:.1f}\n",
      number("step_ms"), number("data_ms"), number("forward_ms"), number("backward_ms"), number("communication_ms"),
      number("optimizer_ms"), host);
  if (number("waited_in_passes_ms") > 0) {
    fmt::print("  forward and backward include {:.1f} ms of waiting for other ranks\n", number("waited_in_passes_ms"));
  }
  if (!result.contains("kernels")) return;
  fmt::print("  {:.1f} ms in kernels; the most expensive:\n", number("kernels_ms"));
  for (size_t n = 0; n < std::min<size_t>(10, result["kernels"].size()); ++n) {
    const auto& kernel = result["kernels"][n];
    fmt::print("  {:9.2f} ms {:6} x  {}\n", kernel["ms"].get<double>(), kernel["calls"].get<int64_t>(),
               kernel["name"].get<std::string>().substr(0, 110));
  }
}

Json measure(const TrainBenchmark& o, distributed::Communicator& communicator, at::Device device) {
  const auto begin = lazy::Clock::now();
  Training training(o, communicator, device);
  double loss = training.step();
  const double first_step = seconds_since(begin);
  for (int n = 0; n < 2; ++n) training.step();
  Parts parts;
  communicator.barrier("the timed steps");
  const double waited = training.waited();
  const auto timed = lazy::Clock::now();
  for (int64_t n = 0; n < o.steps; ++n) loss = training.step(&parts);
  const double seconds = seconds_since(timed);
  if (!std::isfinite(loss)) fail_run("bench train", "expected a finite loss, found {}", loss);
  const double steps = static_cast<double>(o.steps), tokens = static_cast<double>(o.batch * o.length * o.accumulation);
  const double rate = steps * tokens / seconds, flops = train::flops_per_token(o.model, o.length);
  const double peak = o.dtype == "bf16" ? peak_bf16_tflops(o.device) : 0;
  double memory_gib = 0;
  for (const auto& [key, value] : train::memory_use(device)) {
    if (key == "memory/max_reserved(GiB)") memory_gib = value;
  }
  Json result{{"model", o.name},
              {"parameters", count_parameters(o.model).total},
              {"device", o.device},
              {"dtype", o.dtype},
              {"fp8", o.fp8},
              {"activation_checkpointing", o.checkpointing},
              {"ranks", communicator.size()},
              {"data_parallel", o.data_parallel},
              {"corpus", o.corpus},
              {"batch", o.batch},
              {"seq_len", o.length},
              {"gradient_accumulation_steps", o.accumulation},
              {"tokens_per_second", rate},
              {"tflops", rate * flops / 1e12},
              {"peak_memory_bytes", static_cast<int64_t>(memory_gib * (1 << 30))},
              {"step_ms", 1000 * seconds / steps},
              {"data_ms", parts.data / steps},
              {"forward_ms", parts.forward / steps},
              {"backward_ms", parts.backward / steps},
              {"communication_ms", parts.communication / steps},
              {"waited_in_passes_ms", 1000 * (training.waited() - waited) / steps},
              {"optimizer_ms", parts.optimizer / steps},
              {"first_step_seconds", first_step}};
  if (peak > 0) result["mfu"] = rate * flops / 1e12 / peak;
  // all ranks must call this, because a training step has collective operations
  if (o.profile) result.update(profile_step(training));
  return result;
}

}  // namespace

nlohmann::json measure_train(const TrainBenchmark& options) {
  TrainBenchmark o = options;
  o.device = resolve_device(o.device);
  o.dtype = resolve_dtype(o.dtype, o.device);
  Json result;
  distributed::run_as_rank(distributed::rank_info_from_environment(), o.device, std::chrono::minutes(10),
                           [&](distributed::Communicator& communicator, at::Device device) {
                             const Json measured = measure(o, communicator, device);
                             if (communicator.is_rank0()) result = measured;
                           });
  return result;
}

nlohmann::json run_train(const TrainBenchmark& options) {
  const Json result = measure_train(options);
  if (!result.is_null()) print(options, result);
  return result;
}

}  // namespace lazy::benchmarks
