// Measures losses and attention sinks on held-out text and on folders of other text.
#include "repro/measure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/progress.h"
#include "core/stop.h"
#include "data/corpus/documents.h"
#include "data/sequences.h"
#include "model/config.h"
#include "model/device.h"
#include "model/forward_options.h"
#include "sinks/analysis.h"
#include "sinks/measures.h"
#include "sinks/text_source.h"
#include "sinks/uniform.h"

namespace lazy::repro {
namespace fs = std::filesystem;

LoadedModel load(const MeasureInputs& inputs) {
  LoadedModel loaded{LanguageModel::load(inputs.model), load_tokenizer(inputs.model.string())};
  if (inputs.device == "cuda") loaded.model.to(at::Device(at::kCUDA, 0));
  if (resolve_dtype("auto", inputs.device) == "bf16") loaded.model.set_compute_dtype(at::kBFloat16);
  return loaded;
}

std::optional<StreamingCache> streaming_cache(const Json& settings) {
  if (!settings.contains("cache")) return std::nullopt;
  return StreamingCache::parse(settings.at("cache").get<std::string>(), "cache");
}

namespace {

// Returns for each attention-sink measure: one mean per sample, and the mean over samples for each layer and head.
Json sink_measures(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples, const std::string& title) {
  const at::NoGradGuard no_grad;
  ForwardOptions options;
  options.return_stats = true;
  std::vector<double> sink_ratio, density, released_mass, alive_fraction, sink_1, excess;
  const auto windows = sinks::layer_windows(model.config());
  const Segments segments = sinks::segments_of(model.config());
  const bool above_uniform = sinks::UniformRows::serves(model.config());
  sinks::MeasureSum all(segments);
  std::unique_ptr<Progress> progress;
  if (!title.empty()) progress = std::make_unique<Progress>(title, samples.size(), "samples");
  for (size_t n = 0; n < samples.size(); ++n) {
    end_if_stopped("repro");
    const auto stats = model.forward(at::tensor(samples[n], at::kLong).unsqueeze(0).to(model.device()), options).stats;
    sinks::MeasureSum one(segments);
    one.add(stats, windows);
    all.add(stats, windows);
    const sinks::Measures m = one.result();
    sink_ratio.push_back(sinks::mean(m.sink_ratio));
    density.push_back(sinks::mean(m.density));
    released_mass.push_back(sinks::mean(m.released_mass));
    alive_fraction.push_back(sinks::mean(m.alive_fraction));
    sinks::SinkRate rate;
    rate.add(stats);
    sink_1.push_back(sinks::mean(rate.result()));
    if (above_uniform) {
      sinks::UniformRows uniform(model);
      uniform.add(stats);
      excess.push_back(sink_ratio.back() - uniform.stated());
    }
    if (progress) progress->update(n + 1);
  }
  if (progress) progress->finish();
  const sinks::Measures m = all.result();
  Json out{{"sink_ratio", sink_ratio},
           {"density", density},
           {"released_mass", released_mass},
           {"alive_fraction", alive_fraction},
           {"sink_1", sink_1}};
  if (above_uniform) out["excess"] = excess;
  out["by_layer"] = {{"sink_ratio", m.sink_ratio},
                     {"density", m.density},
                     {"released_mass", m.released_mass},
                     {"alive_fraction", m.alive_fraction}};
  return out;
}

}  // namespace

Json measure_heldout(const MeasureInputs& inputs, const Json& settings) {
  LoadedModel loaded = load(inputs);
  SequenceOptions how = inputs.sequences;
  how.length = loaded.model.config().max_length;
  const HeldOutWindows heldout =
      heldout_windows(loaded.model.config(), inputs.corpus, how, settings.at("sequences").get<int64_t>());
  std::vector<double> losses;
  const eval::ScoreOptions scoring{std::max<int64_t>(1, 2048 / how.length), inputs.progress ? "held-out loss" : "",
                                   streaming_cache(settings)};
  for (const eval::Score& s : eval::score(loaded.model, heldout.windows, scoring)) {
    losses.push_back(-s.log_likelihood / static_cast<double>(how.length - 1));
  }
  return {{"loss", losses}, {"tokens_each", how.length - 1}, {"bytes_per_token", heldout.bytes_per_token}};
}

Json measure_sinks(const MeasureInputs& inputs, const Json& settings) {
  LoadedModel loaded = load(inputs);
  const auto source = sinks::corpus_source(*loaded.tokenizer, inputs.corpus.string(), "validation");
  const auto bos = settings.at("bos").get<bool>() ? loaded.tokenizer->bos_id() : std::nullopt;
  const int64_t length = loaded.model.config().max_length;
  const auto samples = sinks::spread_samples(source.ids, length, settings.at("samples").get<int64_t>(), bos);
  if (samples.empty())
    fail("repro", "{}: the validation split has fewer than {} tokens", inputs.corpus.string(), length);
  return sink_measures(loaded.model, samples, inputs.progress ? "sinks" : "");
}

Json measure_domain(const MeasureInputs& inputs, const Json& settings) {
  LoadedModel loaded = load(inputs);
  const int64_t length = loaded.model.config().max_length, blocks = settings.at("blocks").get<int64_t>();
  const auto ids = text_tokens({inputs.domain.string()}, *loaded.tokenizer);
  const auto bos = loaded.tokenizer->bos_id();
  const auto samples = sinks::spread_samples(ids, length, blocks, bos);
  const Stretches stretches = stretches_of(ids, length, blocks);
  if (stretches.empty())
    fail("repro", "--domain {}: expected at least {} tokens of text, found {}", inputs.domain.string(), length + 1,
         ids.size());
  Json out = sink_measures(loaded.model, samples, "");
  out["loss"] = stretch_losses(loaded.model, stretches, length, bos, inputs.progress ? "loss" : "");
  out["tokens"] = ids.size();
  return out;
}

}  // namespace lazy::repro
