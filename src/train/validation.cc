#include "train/validation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <numbers>

#include "core/error.h"
#include "core/stop.h"
#include "model/forward_options.h"
#include "train/batches.h"

namespace lazy::train {

std::optional<double> validation_loss(LanguageModel& model, const Sequences& sequences, int64_t length,
                                      int64_t batch_size, int64_t batches, bool stops) {
  at::NoGradGuard no_grad;
  const int64_t available = std::min(sequences.size(), batches * batch_size);
  if (available == 0) fail("train", "the validation split does not contain a sequence of {} tokens", length);
  const int64_t stride = sequences.size() / available;
  double total = 0;
  for (int64_t first = 0; first < available; first += batch_size) {
    if (stops && stop_requested()) return std::nullopt;
    const int64_t count = std::min(batch_size, available - first);
    const Batch batch = read_batch(sequences, first * stride, count, length, stride).to(model.device());
    total += model.loss(batch.ids, batch.labels).item<double>() * static_cast<double>(count);
  }
  return total / static_cast<double>(available);
}

double bits_per_byte(double nats_per_token, double bytes_per_token) {
  return nats_per_token / std::numbers::ln2 / bytes_per_token;
}

namespace {

void append_measures(Scalars& out, const std::string& prefix, double sink, double released, double alive) {
  out.emplace_back(prefix + "sink_ratio", sink);
  out.emplace_back(prefix + "density", 1 - sink - released);
  out.emplace_back(prefix + "released_mass", released);
  out.emplace_back(prefix + "alive_fraction", alive);
}

}  // namespace

Scalars attention_statistics(LanguageModel& model, const Sequences& sequences, int64_t length, int64_t batch_size) {
  at::NoGradGuard no_grad;
  const int64_t count = std::min(batch_size, sequences.size());
  const Batch batch =
      read_batch(sequences, 0, count, length, sequences.size() / std::max<int64_t>(1, count)).to(model.device());
  ForwardOptions options;
  options.return_stats = true;
  const auto stats = model.forward(batch.ids, options).stats;
  const int64_t window =
      model.config().attention.window > 0 ? std::min(model.config().attention.window, length) : length;
  double visible = 0;  // number of visible keys per query, mean over the sequence
  for (int64_t query = 1; query <= length; ++query) visible += static_cast<double>(std::min(query, window));
  visible /= static_cast<double>(length);
  double sink = 0, released = 0, alive = 0, tau = 0;
  int64_t layers_with_tau = 0;
  Scalars by_layer;
  int64_t layers = 0;  // number of layers with attention
  for (size_t layer = 0; layer < stats.size(); ++layer) {
    if (!stats[layer].defined()) continue;
    ++layers;
    const std::string prefix = fmt::format("attention/layer_{:02}/", layer);
    // stats has shape (3, batch, heads, length). The result is the mean over all queries of this layer.
    const at::Tensor means = stats[layer].flatten(1).mean(1, false, at::kDouble);
    const double of_layer[] = {means[0].item<double>(), means[1].item<double>(), means[2].item<double>()};
    sink += of_layer[0];
    released += of_layer[1];
    alive += of_layer[2];
    append_measures(by_layer, prefix, of_layer[0], of_layer[1], of_layer[2] / visible);
    const at::Tensor offsets = model.tau(static_cast<int64_t>(layer));
    if (!offsets.defined()) continue;
    const double mean = offsets.mean().item<double>();
    by_layer.emplace_back(prefix + "tau_mean", mean);
    tau += mean;
    ++layers_with_tau;
  }
  Scalars out;
  if (layers == 0) return out;
  const auto n = static_cast<double>(layers);
  append_measures(out, "attention/", sink / n, released / n, alive / n / visible);
  if (layers_with_tau > 0) out.emplace_back("attention/tau_mean", tau / static_cast<double>(layers_with_tau));
  out.insert(out.end(), by_layer.begin(), by_layer.end());
  return out;
}

}  // namespace lazy::train
