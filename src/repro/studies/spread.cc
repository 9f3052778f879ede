// Variance of hidden states and values by position and layer on natural text, and the attention to the first position.
#include <ATen/ATen.h>

#include <map>

#include "core/stop.h"
#include "model/probes.h"
#include "repro/studies/study.h"
#include "sinks/state_measures.h"

namespace lazy::repro {

Json spread_study(const StudyRun& run) {
  StudySubject subject =
      study_subject(run, run.settings.at("texts").get<int64_t>(), run.settings.at("length").get<int64_t>());
  const at::NoGradGuard no_grad;
  Json out{{"layers", subject.model.config().num_layers},
           {"window", subject.model.config().window},
           {"texts", subject.texts.size()}};
  // The first position's variance over the mean of the others', less 1, mean over layers and heads: a number a text.
  std::map<std::string, at::Tensor> by_position;
  for (const auto& text : subject.texts) {
    end_if_stopped("repro");
    sinks::VectorStatistics residual("residual"), values("attention.v");
    Probes probes;
    residual.watch(probes);
    values.watch(probes);
    ForwardOptions options;
    options.probes = &probes;
    options.return_stats = true;
    const auto stats =
        subject.model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(subject.model.device()), options).stats;
    for (const auto* statistics : {&residual, &values}) {
      const at::Tensor variance = statistics->result().variance;  // (layers, heads, length)
      const std::string name = statistics == &residual ? "residual" : "values";
      out[name].push_back((variance.select(2, 0) / variance.slice(2, 1).mean(2) - 1).mean().item<double>());
      at::Tensor& sum = by_position[name];
      const at::Tensor more = variance.mean(1) / double(subject.texts.size());
      sum = sum.defined() ? sum + more : more;
    }
    double sink = 0;
    for (const at::Tensor& layer : stats) sink += layer[0].slice(2, 1).mean().item<double>() / double(stats.size());
    out["sink"].push_back(sink);
  }
  for (const auto& [name, variance] : by_position) out["by_position"][name] = rows_of(variance);  // [layer][position]
  return out;
}

}  // namespace lazy::repro
