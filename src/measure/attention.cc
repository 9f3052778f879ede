// Three experiments on attention to the first tokens: a fixed token at position k, a text that repeats one token, and
// streaming KV caches.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/stop.h"
#include "eval/score.h"
#include "measure/experiment.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "sinks/probe_measures.h"

namespace lazy::measure {

// Experiment: measures the attention to a fixed token at position k of every text, and the attention to the first
// position. The model was trained on texts with this token at position k.

namespace {

constexpr double kThreshold = 0.3;  // threshold of Sink_k^0.3

struct Received {
  // Weight on the first position and on the position of the fixed token, per text: mean over layers, heads and the
  // queries after both positions.
  std::vector<double> first, masked;
  // Fraction of heads for which alpha of this position (the mean weight that it receives) exceeds kThreshold.
  std::vector<double> sink_first, sink_masked;
  at::Tensor alpha;  // (length): mean weight that each key receives; mean over layers, heads and texts
};

Received received_by(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts, int64_t position) {
  const at::NoGradGuard no_grad;
  const int64_t length = static_cast<int64_t>(texts.front().size()), place = position - 1;
  const auto layers = static_cast<double>(model.config().num_layers);
  Received out;
  out.alpha = at::zeros({length}, at::kDouble);
  ActivationHooks probes;
  probes.read("layers.*.attention.weights", [&](const std::string&, const at::Tensor& weights) {
    const at::Tensor heads = weights[0].to(at::kDouble), after = heads.slice(1, position);  // (heads, queries, keys)
    const at::Tensor alpha = heads.sum(1) / at::arange(length, 0, -1, heads.options());     // (heads, keys)
    const at::Tensor over = alpha.gt(kThreshold).to(at::kDouble).mean(0);
    out.first.back() += after.select(2, 0).mean().item<double>() / layers;
    out.masked.back() += after.select(2, place).mean().item<double>() / layers;
    out.sink_first.back() += over[0].item<double>() / layers;
    out.sink_masked.back() += over[place].item<double>() / layers;
    out.alpha += alpha.mean(0).to(at::kCPU) / (layers * double(texts.size()));
  });
  ForwardOptions options;
  options.activation_hooks = &probes;
  for (const auto& text : texts) {
    end_if_stopped("measure");
    for (auto* list : {&out.first, &out.masked, &out.sink_first, &out.sink_masked}) list->push_back(0);
    model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(model.device()), options);
  }
  return out;
}

}  // namespace

Json mask_experiment(const ExperimentInputs& run) {
  const auto position = run.settings.at("position").get<int64_t>(), length = run.settings.at("length").get<int64_t>();
  if (position < 1 || position >= length)
    fail("measure", "mask: position: expected 1 to {}, found {}", length - 1, position);
  const auto fixed = load_tokenizer(run.settings.at("model").get<std::string>())->bos_id();
  if (!fixed)
    fail("measure", "mask: the experiment puts the BOS token at a fixed position, but the tokenizer has no BOS token");
  LanguageModel model = experiment_model(run);
  auto texts = texts_without_bos(run, run.settings.at("texts").get<int64_t>(), length);
  for (auto& text : texts) text[static_cast<size_t>(position - 1)] = *fixed;
  const Received received = received_by(model, texts, position);
  double even = 0;  // weight of one key if attention were uniform over the visible keys
  for (int64_t query = position + 1; query <= length; ++query) even += 1.0 / double(query) / double(length - position);
  return {{"position", position},
          {"length", length},
          {"even", even},
          {"first", received.first},
          {"masked", received.masked},
          {"sink_first", received.sink_first},
          {"sink_masked", received.sink_masked},
          {"alpha", numbers_of(received.alpha)}};
}

// Experiment: measures the attention to the first position on natural text, and on texts that repeat a single token.

namespace {

constexpr int64_t kShown = 24;

struct Maps {
  // indexed by [text][layer]: weight on the first key, mean over heads and later queries
  std::vector<std::vector<double>> sink;
  std::vector<at::Tensor> map;  // indexed by [layer]: attention map, mean over heads and texts
};

Maps maps_over(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts) {
  const at::NoGradGuard no_grad;
  Maps out;
  ActivationHooks probes;
  probes.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
    out.sink.back().push_back(weights[0].slice(1, 1).select(2, 0).mean().item<double>());
    const int64_t shown = std::min(kShown, weights.size(2));
    const at::Tensor map = weights[0].mean(0).slice(0, 0, shown).slice(1, 0, shown).to(at::kCPU) / double(texts.size());
    const auto layer = static_cast<size_t>(sinks::layer_of(name));
    if (out.map.size() <= layer) out.map.resize(layer + 1);
    out.map[layer] = out.map[layer].defined() ? out.map[layer] + map : map;
  });
  ForwardOptions options;
  options.activation_hooks = &probes;
  for (const auto& text : texts) {
    end_if_stopped("measure");
    out.sink.emplace_back();
    model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(model.device()), options);
  }
  return out;
}

Json to_json(const Maps& maps) {
  Json out{{"sink", maps.sink}, {"map", Json::array()}};
  // Only the maps of the first, the middle and the last layer are drawn.
  const size_t layers = maps.map.size();
  for (const size_t layer : {size_t{0}, layers / 2, layers - 1})
    out["map"].push_back({{"layer", layer}, {"weights", rows_of(maps.map[layer])}});
  return out;
}

}  // namespace

Json repetition_experiment(const ExperimentInputs& run) {
  const auto texts = run.settings.at("texts").get<int64_t>(), length = run.settings.at("length").get<int64_t>();
  ModelAndTexts subject = model_and_texts(run, texts, length);
  const auto plain = texts_without_bos(run, texts, length);
  std::vector<std::vector<int64_t>> repeated;
  for (const auto& text : plain) repeated.emplace_back(text.size(), text[text.size() / 2]);
  const ModelConfig& config = subject.model.config();
  double uniform = 0;  // weight of the first key if attention were uniform over the visible keys
  for (int64_t query = 2; query <= length; ++query) uniform += 1.0 / double(query) / double(length - 1);
  return {{"layers", config.num_layers},
          {"positions", name(config.positions.kind)},
          {"normalizer", name(config.attention.normalizer)},
          {"uniform", uniform},
          {"bos", subject.bos},
          {"natural_bos", to_json(maps_over(subject.model, subject.texts))},
          {"natural", to_json(maps_over(subject.model, plain))},
          {"repeated", to_json(maps_over(subject.model, repeated))}};
}

// Experiment: measures the loss on long texts with three KV caches: all keys, a sliding window, and a sliding window
// plus the first four tokens.

namespace {

constexpr int64_t kFirst = 4;

}  // namespace

Json streaming_experiment(const ExperimentInputs& run) {
  const auto texts = run.settings.at("texts").get<int64_t>(), times = run.settings.at("times").get<int64_t>();
  // The window is at most the training length; texts are several windows long.
  const int64_t window = std::min(run.settings.at("window").get<int64_t>(), experiment_model(run).config().max_length),
                length = times * window;
  ModelAndTexts subject = model_and_texts(run, texts, length + 1);
  std::vector<eval::Window> windows;
  for (const auto& text : subject.texts)
    windows.push_back({{text.begin(), text.end() - 1}, {text.begin() + 1, text.end()}});
  Json out{{"window_tokens", window},
           {"length", length},
           {"positions", name(subject.model.config().positions.kind)},
           {"bos", subject.bos}};
  const std::pair<const char*, std::optional<StreamingCache>> caches[] = {
      {"full", std::nullopt},
      {"window", StreamingCache{0, window - 1}},
      {"first", StreamingCache{kFirst, window - 1 - kFirst}}};
  for (const auto& [name, cache] : caches) {
    eval::ScoreOptions how{1, run.progress ? name : "", cache, /*targets=*/true};
    for (const eval::Score& score : eval::score(subject.model, windows, how)) {
      // The first `window` tokens see the same keys with every cache, so they are not included in the mean.
      double sum = 0;
      for (int64_t n = window; n < length; ++n) sum -= score.targets[static_cast<size_t>(n)].log_likelihood;
      out[name].push_back(sum / static_cast<double>(length - window));
    }
  }
  return out;
}

}  // namespace lazy::measure
