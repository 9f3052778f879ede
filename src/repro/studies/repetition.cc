// Natural text beside one token repeated: does the first position keep its attention when nothing else tells it apart?
#include <ATen/ATen.h>

#include <algorithm>

#include "core/stop.h"
#include "model/probes.h"
#include "repro/studies/study.h"
#include "sinks/weight_measures.h"

namespace lazy::repro {
namespace {

constexpr int64_t kShown = 24;

struct Maps {
  std::vector<std::vector<double>> sink;  // [text][layer], weight on the first key, mean over heads and later queries
  std::vector<at::Tensor> map;            // [layer], mean over heads and texts
};

Maps maps_over(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts) {
  const at::NoGradGuard no_grad;
  Maps out;
  Probes probes;
  probes.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
    out.sink.back().push_back(weights[0].slice(1, 1).select(2, 0).mean().item<double>());
    const int64_t shown = std::min(kShown, weights.size(2));
    const at::Tensor map = weights[0].mean(0).slice(0, 0, shown).slice(1, 0, shown).to(at::kCPU) / double(texts.size());
    const auto layer = static_cast<size_t>(sinks::layer_of(name));
    if (out.map.size() <= layer) out.map.resize(layer + 1);
    out.map[layer] = out.map[layer].defined() ? out.map[layer] + map : map;
  });
  ForwardOptions options;
  options.probes = &probes;
  for (const auto& text : texts) {
    end_if_stopped("repro");
    out.sink.emplace_back();
    model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(model.device()), options);
  }
  return out;
}

Json to_json(const Maps& maps) {
  Json out{{"sink", maps.sink}, {"map", Json::array()}};
  // The first, the middle and the last layer are drawn.
  const size_t layers = maps.map.size();
  for (const size_t layer : {size_t{0}, layers / 2, layers - 1})
    out["map"].push_back({{"layer", layer + 1}, {"weights", rows_of(maps.map[layer])}});
  return out;
}

}  // namespace

Json repetition_study(const StudyRun& run) {
  const auto texts = run.settings.at("texts").get<int64_t>(), length = run.settings.at("length").get<int64_t>();
  StudySubject subject = study_subject(run, texts, length);
  const auto plain = texts_without_bos(run, texts, length);
  std::vector<std::vector<int64_t>> repeated;
  for (const auto& text : plain) repeated.emplace_back(text.size(), text[text.size() / 2]);
  const ModelConfig& config = subject.model.config();
  double uniform = 0;  // what the first key of an even spread over the visible ones gets
  for (int64_t query = 2; query <= length; ++query) uniform += 1.0 / double(query) / double(length - 1);
  return {{"layers", config.num_layers},
          {"positions", config.positions},
          {"normalizer", config.normalizer},
          {"uniform", uniform},
          {"bos", subject.bos},
          {"natural_bos", to_json(maps_over(subject.model, subject.texts))},
          {"natural", to_json(maps_over(subject.model, plain))},
          {"repeated", to_json(maps_over(subject.model, repeated))}};
}

}  // namespace lazy::repro
