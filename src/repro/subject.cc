#include "repro/subject.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "core/progress.h"
#include "core/stop.h"
#include "eval/score.h"
#include "sinks/measures.h"

namespace lazy::repro {

Loaded load(const Subject& subject) {
  Loaded loaded{LanguageModel::load(subject.model), load_tokenizer(subject.model.string())};
  if (subject.device == "cuda") loaded.model.to(at::Device(at::kCUDA, 0));
  return loaded;
}

std::optional<StreamingCache> streaming_cache(const Json& settings) {
  if (!settings.contains("cache")) return std::nullopt;
  return StreamingCache::parse(settings.at("cache").get<std::string>(), "cache");
}

std::vector<double> stream_losses(LanguageModel& model, const std::vector<int32_t>& ids, std::optional<int32_t> bos,
                                  int64_t block, int64_t length, int64_t most, const std::string& title) {
  const int64_t begin = bos ? 0 : 1, blocks = (static_cast<int64_t>(ids.size()) - begin) / block,
                count = std::min(blocks, most);
  std::vector<eval::Window> windows;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = begin + n * blocks / count * block;
    for (int64_t at = first; at < first + block; at += length) {
      const auto from = ids.begin() + at;
      eval::Window window;
      window.targets.assign(from, from + std::min(length, first + block - at));
      window.input.push_back(bos ? *bos : *(from - 1));
      window.input.insert(window.input.end(), window.targets.begin(), window.targets.end() - 1);
      windows.push_back(std::move(window));
    }
  }
  const auto scores = eval::score(model, windows, {std::max<int64_t>(1, 2048 / length), title});
  std::vector<double> losses;
  const auto each = static_cast<size_t>((block + length - 1) / length);
  for (size_t n = 0; n < static_cast<size_t>(count); ++n) {
    double sum = 0;
    for (size_t i = 0; i < each; ++i) sum -= scores[n * each + i].log_likelihood;
    losses.push_back(sum / static_cast<double>(block));
  }
  return losses;
}

SampleMeasures sink_measures(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples,
                             const std::string& title) {
  const at::NoGradGuard no_grad;
  ForwardOptions options;
  options.return_stats = true;
  SampleMeasures out;
  const auto windows = sinks::layer_windows(model.config());
  const Segments segments = sinks::segments_of(model.config());
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
    out.sink_ratio.push_back(sinks::mean(m.sink_ratio));
    out.density.push_back(sinks::mean(m.density));
    out.released_mass.push_back(sinks::mean(m.released_mass));
    out.alive_fraction.push_back(sinks::mean(m.alive_fraction));
    if (progress) progress->update(n + 1);
  }
  if (progress) progress->finish();
  const sinks::Measures m = all.result();
  out.by_layer = {{"sink_ratio", m.sink_ratio},
                  {"density", m.density},
                  {"released_mass", m.released_mass},
                  {"alive_fraction", m.alive_fraction}};
  return out;
}

}  // namespace lazy::repro
