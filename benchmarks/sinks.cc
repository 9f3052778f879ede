#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "benchmarks/timing.h"
#include "core/text.h"
#include "model/device.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "ops/attention_weights.h"
#include "sinks/measures.h"
#include "train/profiling.h"

namespace lazy::benchmarks {

namespace {

at::Tensor random_text(const LanguageModel& model, int64_t length) {
  return at::randint(0, model.config().vocab_size, {1, length}, at::TensorOptions(at::kLong)).to(model.device());
}

// Returns the statistics of each layer, (3, batch, heads, length), computed from the full attention matrices. `inputs`
// are the recorded queries and keys of each layer.
std::vector<at::Tensor> by_definition(const LanguageModel& model,
                                      const std::vector<std::pair<at::Tensor, at::Tensor>>& inputs,
                                      at::ScalarType type) {
  std::vector<at::Tensor> out;
  for (size_t layer = 0; layer < inputs.size(); ++layer) {
    const ops::AttentionTerms terms = model.attention_terms(static_cast<int64_t>(layer));
    const auto& [q, k] = inputs[layer];
    out.push_back(
        ops::weight_statistics(ops::normalized_weights(ops::attention_scores(q.to(type), k.to(type), terms), terms)));
  }
  return out;
}

at::Tensor flat(const sinks::HeadMatrix& values) {
  std::vector<double> all;
  for (const auto& row : values) all.insert(all.end(), row.begin(), row.end());
  return at::tensor(all, at::kDouble);
}

void check(LanguageModel& model, const std::vector<int64_t>& windows, int64_t length) {
  std::vector<std::pair<at::Tensor, at::Tensor>> inputs(static_cast<size_t>(model.config().num_layers));
  ForwardOptions options;
  options.return_stats = true;
  options.on_attention_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
    inputs[static_cast<size_t>(layer)] = {q, k};
  };
  const auto measured = [&](const std::vector<at::Tensor>& stats) {
    sinks::MeasureSum sum;
    sum.add(stats, windows);
    return sum.result();
  };
  const sinks::Measures found = measured(model.forward(random_text(model, length), options).stats);
  const sinks::Measures plain = measured(by_definition(model, inputs, at::kFloat)),
                        truth = measured(by_definition(model, inputs, at::kDouble));
  for (const auto& [what, field] : {std::pair{"the sink ratio", &sinks::Measures::sink_ratio},
                                    {"the density", &sinks::Measures::density},
                                    {"the alive fraction", &sinks::Measures::alive_fraction}}) {
    require_agreement("bench sinks", what, model.compute_dtype(), flat(found.*field), flat(plain.*field),
                      flat(truth.*field));
  }
}

// Returns the peak of the allocated GPU memory in bytes while `work` runs, or 0 on a CPU.
double peak_bytes(at::Device device, const std::function<void()>& work) {
  if (device.is_cpu()) return 0;
  train::memory_use(device);  // this call resets the peak
  work();
  for (const auto& [name, value] : train::memory_use(device)) {
    if (name == "memory/max_active(GiB)") return value * (1 << 30);
  }
  return 0;
}

}  // namespace

nlohmann::json run_sinks(const SinksBenchmark& options) {
  SinksBenchmark o = options;
  o.device = resolve_device(o.device);
  o.dtype = resolve_dtype(o.dtype, o.device);
  if (o.length == 0) o.length = o.device == "cuda" ? 32768 : 2048;
  const at::Device device = o.device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const auto windows = sinks::layer_windows(o.model);
  const at::NoGradGuard guard;
  LanguageModel model(o.model, 1);
  model.to(device);
  model.set_compute_dtype(o.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  check(model, windows, std::min(o.checked, o.length));

  const at::Tensor text = random_text(model, o.length);
  // item() waits until the GPU has finished
  const auto plain = [&] { model.forward(text).hidden.select(1, 0).sum().item<double>(); };
  sinks::Measures measures;
  const auto measured = [&] {
    ForwardOptions how;
    how.return_stats = true;
    sinks::MeasureSum sum;
    sum.add(model.forward(text, how).stats, windows);
    measures = sum.result();
  };
  const auto times = medians_ms(o.repeats, {plain, measured});
  const double bytes[] = {peak_bytes(device, plain), peak_bytes(device, measured)};
  const auto count = count_parameters(o.model).total;
  fmt::print("{}: {} parameters, a text of {} tokens, {} on {}; statistics of {} tokens agree with the definition\n\n",
             o.name, human_count(static_cast<double>(count)), o.length, o.dtype, o.device,
             std::min(o.checked, o.length));
  fmt::print(
      "| pass | ms | time / plain forward | peak memory, GiB | memory / plain forward |\n|---|---:|---:|---:|---:|\n");
  const auto memory = [&](size_t n) {
    return bytes[n] > 0 ? fmt::format("{:.2f} | {:.3f}", bytes[n] / (1 << 30), bytes[n] / bytes[0])
                        : std::string("– | –");
  };
  fmt::print("| plain forward | {:.1f} | 1 | {} |\n", times[0], memory(0));
  fmt::print("| with sink ratio, density, released mass and alive fraction of every head | {:.1f} | {:.3f} | {} |\n",
             times[1], times[1] / times[0], memory(1));
  nlohmann::ordered_json result{{"model", o.name},
                                {"parameters", count},
                                {"device", o.device},
                                {"dtype", o.dtype},
                                {"length", o.length},
                                {"plain_ms", times[0]},
                                {"measured_ms", times[1]},
                                {"time_ratio", times[1] / times[0]},
                                {"sink_ratio", sinks::mean(measures.sink_ratio)},
                                {"alive_fraction", sinks::mean(measures.alive_fraction)}};
  if (bytes[0] > 0)
    result.update({{"plain_bytes", bytes[0]}, {"measured_bytes", bytes[1]}, {"memory_ratio", bytes[1] / bytes[0]}});
  return result;
}

}  // namespace lazy::benchmarks
