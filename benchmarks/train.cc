#include "benchmarks/train.h"

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

#include "core/error.h"
#include "core/text.h"
#include "model/language_model.h"
#include "train/machine.h"
#include "train/memory.h"
#include "train/optimizer.h"
#include "train/throughput.h"
#include "train/trace.h"

namespace lazy::benchmarks {

namespace {

using Json = nlohmann::ordered_json;

// Moments of a device: on a GPU they are those of its stream, not of the queueing host.
class Clock {
 public:
  explicit Clock(at::Device device) : device_(device) {}
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
  double forward = 0, backward = 0, optimizer = 0;
};

class Training {
 public:
  explicit Training(const TrainBenchmark& o) : o_(o), device_(o.device == "cuda" ? at::Device(at::kCUDA, 0) : at::kCPU) {
    model_.emplace(o.model, 42);
    model_->to(device_);
    model_->set_compute_dtype(o.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
    model_->set_checkpointing(checkpointing_from(o.checkpointing));
    optimizer_.emplace(model_->parameters(), train::AdamWOptions{});
    ids_ = at::randint(0, o.model.vocab_size, {o.batch, o.length}, at::TensorOptions(at::kLong)).to(device_);
    labels_ = at::roll(ids_, -1, 1);
  }

  // One optimizer step; returns its loss.
  double step(Parts* parts = nullptr) {
    const Clock clock(device_);
    std::vector<Clock::Moment> moments;
    at::Tensor loss;
    for (int64_t micro = 0; micro < o_.accumulation; ++micro) {
      moments.push_back(clock.now());
      loss = model_->loss(ids_, labels_);
      moments.push_back(clock.now());
      (o_.accumulation > 1 ? loss / static_cast<double>(o_.accumulation) : loss).backward();
    }
    moments.push_back(clock.now());
    const double norm = optimizer_->gradient_norm();
    optimizer_->step(1e-4, norm, 1.0);
    moments.push_back(clock.now());
    if (parts) {
      const size_t last = moments.size() - 2;
      for (size_t n = 0; n < last; n += 2) {
        parts->forward += Clock::ms(moments[n], moments[n + 1]);
        parts->backward += Clock::ms(moments[n + 1], moments[n + 2]);
      }
      parts->optimizer += Clock::ms(moments[last], moments[last + 1]);
    }
    return loss.item<double>();
  }
  at::Device device() const { return device_; }

 private:
  TrainBenchmark o_;
  at::Device device_;
  std::optional<LanguageModel> model_;
  std::optional<train::AdamW> optimizer_;
  at::Tensor ids_, labels_;
};

// Kernels (operators on a CPU) of a step by the time that they take.
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
  for (size_t n = 0; n < std::min<size_t>(10, sorted.size()); ++n) {
    out.push_back({{"name", sorted[n].first}, {"ms", sorted[n].second.ms}, {"calls", sorted[n].second.calls}});
  }
  return {{"kernels", out}, {"kernels_ms", all}};
}

}  // namespace

nlohmann::json run_train(const TrainBenchmark& options) {
  TrainBenchmark o = options;
  o.device = train::resolve_device(o.device);
  o.dtype = train::resolve_dtype(o.dtype, o.device);
  const auto begin = std::chrono::steady_clock::now();
  Training training(o);
  double loss = training.step();
  const double first_step = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (int n = 0; n < 2; ++n) training.step();
  Parts parts;
  const auto timed = std::chrono::steady_clock::now();
  for (int64_t n = 0; n < o.steps; ++n) loss = training.step(&parts);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - timed).count();
  if (!std::isfinite(loss)) fail_run("bench train", "the loss is {}", loss);
  const double steps = static_cast<double>(o.steps), tokens = static_cast<double>(o.batch * o.length * o.accumulation);
  const double rate = steps * tokens / seconds, flops = train::flops_per_token(o.model, o.length);
  const double peak = o.dtype == "bf16" ? train::peak_bf16_tflops(o.device) : 0;
  double memory_gib = 0;
  for (const auto& [key, value] : train::memory_use(training.device())) {
    if (key == "memory/max_reserved(GiB)") memory_gib = value;
  }
  const auto count = count_parameters(o.model);
  Json result{{"model", o.name},
              {"parameters", count.total},
              {"device", o.device},
              {"dtype", o.dtype},
              {"activation_checkpointing", o.checkpointing},
              {"batch", o.batch},
              {"seq_len", o.length},
              {"gradient_accumulation_steps", o.accumulation},
              {"tokens_per_second", rate},
              {"tflops", rate * flops / 1e12},
              {"peak_memory_bytes", static_cast<int64_t>(memory_gib * (1 << 30))},
              {"step_ms", 1000 * seconds / steps},
              {"forward_ms", parts.forward / steps},
              {"backward_ms", parts.backward / steps},
              {"optimizer_ms", parts.optimizer / steps},
              {"first_step_seconds", first_step}};
  if (peak > 0) result["mfu"] = rate * flops / 1e12 / peak;
  fmt::print("{}: {} parameters, {} x {} tokens x {}, {} on {}, checkpointing {}\n", o.name,
             human_count(static_cast<double>(count.total)), o.batch, o.length, o.accumulation, o.dtype, o.device, o.checkpointing);
  fmt::print("  {:.0f} tokens/s   {:.1f} TFLOP/s{}   {:.2f} GiB   first step after {:.1f} s\n", rate, rate * flops / 1e12,
             peak > 0 ? fmt::format("   MFU {:.1f} %", 100 * rate * flops / 1e12 / peak) : "", memory_gib, first_step);
  fmt::print("  step {:.1f} ms = forward {:.1f} + backward {:.1f} + optimizer {:.1f} + host {:.1f}\n", 1000 * seconds / steps,
             parts.forward / steps, parts.backward / steps, parts.optimizer / steps,
             1000 * seconds / steps - (parts.forward + parts.backward + parts.optimizer) / steps);
  if (o.profile) {
    result.update(profile_step(training));
    fmt::print("  {:.1f} ms in kernels; the most expensive:\n", result["kernels_ms"].get<double>());
    for (const auto& kernel : result["kernels"]) {
      fmt::print("  {:9.2f} ms {:6} x  {}\n", kernel["ms"].get<double>(), kernel["calls"].get<int64_t>(),
                 kernel["name"].get<std::string>().substr(0, 110));
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
