// Attention to a fixed token at position k of every text, and to the first position: who is the sink of a model that
// was trained with that token in that place?
#include <ATen/ATen.h>

#include "core/error.h"
#include "core/stop.h"
#include "model/probes.h"
#include "repro/studies/study.h"
#include "sinks/weight_measures.h"

namespace lazy::repro {
namespace {

constexpr double kThreshold = 0.3;  // of Sink_k^0.3

struct Received {
  std::vector<double> first, masked;  // weight on the two positions, mean over layers, heads, queries after both
  std::vector<double> sink_first, sink_masked;  // share of layers and heads whose alpha exceeds the threshold
  at::Tensor alpha;                             // (length), mean over layers, heads and texts
};

Received received_by(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts, int64_t position) {
  const at::NoGradGuard no_grad;
  const int64_t length = static_cast<int64_t>(texts.front().size()), place = position - 1;
  const auto layers = static_cast<double>(model.config().num_layers);
  Received out;
  out.alpha = at::zeros({length}, at::kDouble);
  Probes probes;
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
  options.probes = &probes;
  for (const auto& text : texts) {
    end_if_stopped("repro");
    for (auto* list : {&out.first, &out.masked, &out.sink_first, &out.sink_masked}) list->push_back(0);
    model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(model.device()), options);
  }
  return out;
}

}  // namespace

Json mask_study(const StudyRun& run) {
  const auto position = run.settings.at("position").get<int64_t>(), length = run.settings.at("length").get<int64_t>();
  if (position < 1 || position >= length)
    fail("repro", "mask: position: expected 1 to {}, found {}", length - 1, position);
  const auto fixed = load_tokenizer(run.settings.at("model").get<std::string>())->bos_id();
  if (!fixed) fail("repro", "mask: the fixed token is BOS: the tokenizer has none");
  LanguageModel model = study_model(run);
  auto texts = texts_without_bos(run, run.settings.at("texts").get<int64_t>(), length);
  for (auto& text : texts) text[static_cast<size_t>(position - 1)] = *fixed;
  const Received received = received_by(model, texts, position);
  double even = 0;  // what one of all visible keys gets of the same queries
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

}  // namespace lazy::repro
