// |gamma| of every layer, from the weights alone: at the coordinates where EPE_1 is largest, and over all of them.
#include <ATen/ATen.h>

#include <algorithm>

#include "repro/studies/study.h"
#include "sinks/positions.h"
#include "sinks/query_bias.h"

namespace lazy::repro {

Json gamma_study(const StudyRun& run) {
  LanguageModel model = study_model(run);
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  Json out{{"layers", config.num_layers}, {"hidden_size", config.hidden_size}, {"heads", config.num_heads}};
  // Where EPE_1 is massive, by each of its readings.
  for (const auto variant : sinks::kEveryReading) {
    const at::Tensor first = sinks::effective_positions(model, variant)[0].to(at::kCPU);
    const at::Tensor order =
        first.abs().argsort(0, /*descending=*/true).slice(0, 0, std::min<int64_t>(10, config.hidden_size));
    Json top = Json::array();
    for (int64_t n = 0; n < order.size(0); ++n) {
      const auto coordinate = order[n].item<int64_t>();
      top.push_back({{"coordinate", coordinate}, {"value", first[coordinate].item<double>()}});
    }
    out["top"][sinks::name(variant)] = top;
  }
  out["gamma"] = Json::array();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const at::Tensor size = sinks::gamma_by_head(model, layer).sum(0).abs();
    out["gamma"].push_back({{"mean", size.mean().item<double>()},
                            {"std", size.std(/*unbiased=*/false).item<double>()},
                            {"std_unbiased", size.std(/*unbiased=*/true).item<double>()},
                            {"all", numbers_of(size)}});
  }
  return out;
}

}  // namespace lazy::repro
