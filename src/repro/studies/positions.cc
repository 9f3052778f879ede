// Effective positional encodings and how W_k EPE_j aligns with the query bias, from the weights alone.
#include <ATen/ATen.h>

#include <algorithm>

#include "repro/studies/study.h"
#include "sinks/positions.h"
#include "sinks/query_bias.h"

namespace lazy::repro {

Json positions_study(const StudyRun& run) {
  LanguageModel model = study_model(run);
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  Json out{{"layers", config.num_layers}, {"positions", config.max_length}, {"hidden_size", config.hidden_size}};
  for (const auto variant : sinks::kEveryReading) {
    const at::Tensor epe = sinks::effective_positions(model, variant).to(at::kCPU, at::kDouble);
    const at::Tensor first = epe[0], order = first.abs().argsort(0, /*descending=*/true), norms = epe.norm(2, {1});
    Json of_variant{{"first", numbers_of(first)},
                    {"norm_first", norms[0].item<double>()},
                    {"norm_others", norms.slice(0, 1).median().item<double>()}};
    for (int64_t n = 0; n < std::min<int64_t>(10, order.size(0)); ++n)
      of_variant["top"].push_back(order[n].item<int64_t>());
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const at::Tensor cosines = sinks::alignment(model, layer, epe), others = cosines.slice(0, 1);
      of_variant["cosines"].push_back({{"first", cosines[0].item<double>()},
                                       {"others", numbers_of(others)},
                                       {"others_mean", others.mean().item<double>()},
                                       {"others_std", others.std(true).item<double>()}});
    }
    out[sinks::name(variant)] = of_variant;
  }
  return out;
}

}  // namespace lazy::repro
