// The loss of a model whose distance bias is set to zero beyond a distance, which shows how far the bias is used.
#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/stop.h"
#include "measure/experiment.h"
#include "sinks/scoped_interventions.h"

namespace lazy::measure {

// Returns {"window": W, "distances": [R, ...], "loss": [[one loss per text], ...]}. For each distance R, the losses
// (nats per token) are measured with the bias entries beyond distance R set to zero in all layers. The distances are 0,
// the powers of two below W, and W - 1, which changes nothing. If W covers the whole context, adding a constant to the
// bias has no effect on the model; then the mean of the entries beyond R is first subtracted from all entries.
Json bias_range_experiment(const ExperimentInputs& run) {
  const auto length = std::min(run.settings.at("length").get<int64_t>(), experiment_model(run).config().max_length);
  ModelAndTexts subject = model_and_texts(run, run.settings.at("texts").get<int64_t>(), length + 1);
  LanguageModel& model = subject.model;
  const at::NoGradGuard no_grad;
  int64_t window = 0;
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer) {
    if (const at::Tensor bias = model.distance_bias(layer); bias.defined()) window = std::max(window, bias.size(1));
  }
  if (window < 2) fail("measure", "bias_range: expected a model with a distance bias, found none");
  std::vector<int64_t> distances{0};
  for (int64_t distance = 1; distance < window - 1; distance *= 2) distances.push_back(distance);
  distances.push_back(window - 1);
  Json out{{"window", window}, {"length", length}, {"distances", distances}, {"loss", Json::array()}};
  for (const int64_t distance : distances) {
    end_if_stopped("measure");
    sinks::ScopedWeightEdits edits;
    for (int64_t layer = 0; layer < model.config().num_layers; ++layer) {
      const at::Tensor bias = model.distance_bias(layer);  // (heads, W)
      if (!bias.defined() || distance + 1 >= bias.size(1)) continue;
      at::Tensor shortened = bias.detach().clone();
      if (bias.size(1) >= length) shortened -= shortened.slice(1, distance + 1).mean(1, /*keepdim=*/true);
      shortened.slice(1, distance + 1).zero_();
      edits.write(bias, shortened);
    }
    out["loss"].push_back(text_losses(model, subject.texts, /*first=*/0, /*batch=*/0));
  }
  return out;
}

}  // namespace lazy::measure
