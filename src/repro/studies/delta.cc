// Delta_j = gamma . x_j on natural texts: of the first position against all others, layer by layer.
#include <ATen/ATen.h>

#include <memory>

#include "core/progress.h"
#include "core/stop.h"
#include "model/probes.h"
#include "repro/studies/study.h"
#include "sinks/positions.h"
#include "sinks/query_bias.h"
#include "sinks/weight_measures.h"

namespace lazy::repro {
namespace {

constexpr int64_t kBins = 48;

// How many of `values` (n) fall between each two of kBins + 1 edges.
std::vector<double> counted(const at::Tensor& values, double low, double high) {
  return numbers_of(at::histc(values.to(at::kDouble), kBins, low, high));
}

}  // namespace

Json delta_study(const StudyRun& run) {
  StudySubject subject =
      study_subject(run, run.settings.at("texts").get<int64_t>(), run.settings.at("length").get<int64_t>());
  LanguageModel& model = subject.model;
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const int64_t layers = model.config().num_layers, heads = model.config().num_heads;
  const at::Tensor epe = sinks::effective_positions(model, sinks::EffectivePositions::literal);
  std::vector<std::vector<at::Tensor>> delta(static_cast<size_t>(layers));  // [layer][text], (length, heads)
  std::vector<std::vector<double>> first_input(static_cast<size_t>(layers)),
      rest(static_cast<size_t>(layers));  // cosines with b_Q
  Probes probes;
  probes.read("layers.*.attention.input", [&](const std::string& name, const at::Tensor& x) {
    const int64_t layer = sinks::layer_of(name);
    delta[static_cast<size_t>(layer)].push_back(sinks::delta_by_head(model, layer, x[0]));
    first_input[static_cast<size_t>(layer)].push_back(
        sinks::alignment(model, layer, x[0].slice(0, 0, 1)).item<double>());
  });
  probes.read("layers.*.residual", [&](const std::string& name, const at::Tensor& h) {
    const int64_t layer = sinks::layer_of(name);
    rest[static_cast<size_t>(layer)].push_back(
        sinks::alignment(model, layer, (h[0][0].to(at::kFloat) - epe[0]).unsqueeze(0)).item<double>());
  });
  ForwardOptions options;
  options.probes = &probes;
  std::unique_ptr<Progress> progress;
  if (run.progress) progress = std::make_unique<Progress>("delta", subject.texts.size(), "texts");
  for (size_t n = 0; n < subject.texts.size(); ++n) {
    end_if_stopped("repro");
    model.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0).to(model.device()), options);
    if (progress) progress->update(n + 1);
  }
  if (progress) progress->finish();
  Json out{{"layers", layers},
           {"heads", heads},
           {"texts", subject.texts.size()},
           {"bos", subject.bos},
           {"by_layer", Json::array()}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor by_head = at::stack(delta[static_cast<size_t>(layer)]),
                     all = by_head.sum(2);  // (texts, length, heads), (texts, length)
    const at::Tensor first = all.select(1, 0), others = all.slice(1, 1);
    const double low = all.min().item<double>(), high = all.max().item<double>() + 1e-9;
    out["by_layer"].push_back(
        {{"first", numbers_of(first)},
         {"others_mean", numbers_of(others.mean(1))},
         {"others_std", others.std(true).item<double>()},
         {"first_by_head", numbers_of(by_head.select(1, 0).mean(0))},
         {"others_by_head", numbers_of(by_head.slice(1, 1).mean(at::IntArrayRef{0, 1}))},
         {"histogram",
          {{"low", low}, {"high", high}, {"first", counted(first, low, high)}, {"others", counted(others, low, high)}}},
         {"cosine_input", first_input[static_cast<size_t>(layer)]},
         {"cosine_without_epe", rest[static_cast<size_t>(layer)]}});
  }
  return out;
}

}  // namespace lazy::repro
