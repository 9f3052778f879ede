#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/timing.h"
#include "core/config.h"
#include "core/config_files.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "model/device.h"
#include "model/forward_options.h"
#include "model/graphed_state_runner.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/own_stream.h"
#include "train/profiling.h"

namespace lazy::benchmarks {
namespace {

constexpr char kTwin[] = "transformer";  // the softmax model to which the other models are compared
constexpr int64_t kGenerated = 16;

constexpr std::string_view kSize = "-340m";  // end of the names of the measured models in configs/models

// Returns the names of the shipped models without kSize.
std::vector<std::string> shipped_models() {
  std::vector<std::string> models;
  for (const std::string& name : shipped_names(ShippedKind::model)) {
    if (name.ends_with(kSize)) models.push_back(name.substr(0, name.size() - kSize.size()));
  }
  if (models.empty()) fail("bench mixers", "expected the folder configs/models next to the program, found none");
  return models;
}

ModelConfig shape(const std::string& name, int64_t layers, int64_t length) {
  Config config = Config::load(resolve_config(name + std::string(kSize)));
  ModelConfig m = ModelConfig::from_toml(config);
  if (layers > 0) {  // a full vocabulary would dominate the time of a few layers
    m.num_layers = std::min(layers, m.num_layers);
    m.vocab_size = 256;
  }
  m.max_length = std::max(m.max_length, length);
  return m;
}

at::Device device_of(const MixersBenchmark& o) { return o.device == "cuda" ? at::Device(at::kCUDA, 0) : at::kCPU; }

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& t : tensors) sum += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  return sum;
}

// Returns the bytes of the KV cache or recurrent state after the tokens that `cache` contains. Unused capacity of the
// key and value tensors is not counted.
int64_t state_bytes(const KVCache& cache) {
  int64_t sum = 0;
  for (const auto* tensors : {&cache.keys, &cache.values}) {
    for (const at::Tensor& t : *tensors) {
      if (t.defined()) sum += static_cast<int64_t>(t.nbytes()) / t.size(1) * cache.length;
    }
  }
  for (const auto& layer : cache.states) sum += bytes_of(layer);
  return sum;
}

class MeasureInputs {
 public:
  MeasureInputs(const ModelConfig& config, const MixersBenchmark& o)
      : model_(config, 42), device_(device_of(o)), tokens_(o.tokens) {
    model_.to(device_);
    model_.set_compute_dtype(o.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  }

  // Creates random sequences of the given length for the following measurements.
  void take_length(int64_t length) {
    const int64_t batch = std::max<int64_t>(1, tokens_ / length);
    ids_ = at::randint(0, model_.config().vocab_size, {batch, length}, at::TensorOptions(at::kLong)).to(device_);
    labels_ = at::roll(ids_, -1, 1);
    cache_ = {};
    steps_ = std::make_unique<GraphedStateRunner>(model_, device_.is_cuda());
  }

  // Runs the forward and backward pass of one training step.
  void train() {
    const at::Tensor loss = model_.loss(ids_, labels_);
    loss.backward();
    if (!std::isfinite(loss.item<double>()))
      fail_run("bench mixers", "expected a finite loss, found {}", loss.item<double>());
    for (const auto& item : model_.parameters()) item.second.mutable_grad().reset();
  }

  // Prefills the cache with one sequence. generate() continues from this cache.
  void read() {
    const at::NoGradGuard no_grad;
    constexpr int64_t kPiece = 2048;
    const int64_t length = ids_.size(1);
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      model_.forward(ids_.narrow(0, 0, 1).narrow(1, begin, std::min(kPiece, length - begin)), {.cache = &cache_});
    }
  }
  void generate() {
    const at::NoGradGuard no_grad;
    KVCache cache = cache_;
    for (int64_t n = 0; n < kGenerated; ++n) steps_->logits(ids_.narrow(0, 0, 1).narrow(1, n, 1), cache);
    steps_->forget(cache);
  }

  double median_ms(int64_t rounds, const std::function<void()>& work) const {
    const Works works = {work};
    return (device_.is_cuda() ? device_medians_ms(static_cast<int>(rounds), 1, works)
                              : medians_ms(static_cast<int>(rounds), works))[0];
  }
  double tokens() const { return static_cast<double>(ids_.numel()); }
  const KVCache& cache() const { return cache_; }
  at::Device device() const { return device_; }
  const ModelConfig& config() const { return model_.config(); }

 private:
  LanguageModel model_;
  at::Device device_;
  int64_t tokens_;
  at::Tensor ids_, labels_;
  KVCache cache_;
  std::unique_ptr<GraphedStateRunner> steps_;
};

nlohmann::json measure(MeasureInputs& subject, const std::string& name, const MixersBenchmark& o, int64_t length) {
  subject.take_length(length);
  train::memory_use(subject.device());  // this call resets the peak, so that it is measured for this model alone
  const double step_ms = subject.median_ms(o.steps, [&] { subject.train(); });
  double memory_gib = 0;
  for (const auto& [key, value] : train::memory_use(subject.device())) {
    if (subject.device().is_cuda() && key == "memory/max_active(GiB)") memory_gib = value;
  }
  subject.read();
  const double decode_ms = subject.median_ms(o.steps, [&] { subject.generate(); }) / static_cast<double>(kGenerated);
  nlohmann::json row = {{"model", name},
                        {"length", length},
                        {"layers", subject.config().num_layers},
                        {"parameters", count_parameters(subject.config()).total},
                        {"train_tokens_per_second", 1000 * subject.tokens() / step_ms},
                        {"decode_ms_per_token", decode_ms},
                        {"state_bytes", state_bytes(subject.cache())}};
  if (memory_gib > 0) row["peak_memory_bytes"] = static_cast<int64_t>(memory_gib * (1 << 30));
  return row;
}

}  // namespace

nlohmann::json run_mixers(const MixersBenchmark& options) {
  MixersBenchmark o = options;
  o.device = resolve_device(o.device);
  o.dtype = resolve_dtype(o.dtype, o.device);
  const bool gpu = o.device == "cuda";
  const OwnStream stream(device_of(o));
  if (o.lengths.empty()) o.lengths = gpu ? std::vector<int64_t>{1024, 4096, 16384, 65536} : std::vector<int64_t>{1024};
  if (o.layers == 0 && !gpu) o.layers = 2;
  if (o.tokens == 0) o.tokens = gpu ? 32768 : 2048;
  const std::vector<std::string> known = shipped_models();
  std::vector<std::string> names = {kTwin};  // the softmax model is measured first
  for (const std::string& name : o.models.empty() ? known : o.models) {
    if (std::ranges::count(known, name) == 0)
      fail("bench mixers", "--model: expected one of {}, found '{}'", fmt::join(known, ", "), name);
    if (name != kTwin) names.push_back(name);
  }
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table = {{"model", "length", "training, tokens/s", "speed / softmax",
                                                  "decoding, ms per token", "speed / softmax", "state", "memory"}};
  std::map<int64_t, nlohmann::json> twin;
  const int64_t longest = *std::max_element(o.lengths.begin(), o.lengths.end());
  for (const std::string& name : names) {
    MeasureInputs subject(shape(name, o.layers, longest), o);
    for (const int64_t length : o.lengths) {
      nlohmann::json row = measure(subject, name, o, length);
      if (name == kTwin) twin[length] = row;
      const double train = row["train_tokens_per_second"], decode = row["decode_ms_per_token"];
      const double faster = train / twin[length]["train_tokens_per_second"].get<double>();
      const double sooner = twin[length]["decode_ms_per_token"].get<double>() / decode;
      row["train_speed_of_softmax"] = faster;
      row["decode_speed_of_softmax"] = sooner;
      table.push_back({name, fmt::format("{}", length), fmt::format("{:.0f}", train), fmt::format("{:.2f}", faster),
                       fmt::format("{:.2f}", decode), fmt::format("{:.2f}", sooner),
                       human_bytes(row["state_bytes"].get<double>()),
                       row.contains("peak_memory_bytes") ? human_bytes(row["peak_memory_bytes"].get<double>()) : "-"});
      log::info("{}, {} tokens: {:.0f} tokens/s in training, {:.2f} ms per token in decoding", name, length, train,
                decode);
      rows.push_back(std::move(row));
    }
    if (o.after_model) o.after_model({{"device", o.device}, {"dtype", o.dtype}, {"rows", rows}});
  }
  fmt::print("340M shapes, {}, {} on {}\n{}",
             o.layers > 0 ? fmt::format("{} layers, vocabulary 256", o.layers) : "whole models", o.dtype, o.device,
             markdown_table(table, "lrrrrrrr", false));
  return {{"device", o.device}, {"dtype", o.dtype}, {"rows", rows}};
}

}  // namespace lazy::benchmarks
