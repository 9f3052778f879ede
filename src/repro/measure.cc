// Measures losses and attention sinks on held-out text and on folders of other text.
#include "repro/measure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

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

// Reads at most `most` sequences, which are spread evenly over all sequences.
Stretches spread(const Sequences& sequences, int64_t length, int64_t most) {
  const int64_t all = sequences.size(), count = std::min(all, most);
  Stretches out;
  for (int64_t n = 0; n < count; ++n) {
    out.emplace_back(static_cast<size_t>(length));
    sequences.read(n * all / count, out.back().data());
  }
  return out;
}

}  // namespace

Stretches stretches_of(const std::vector<int32_t>& ids, int64_t tokens, int64_t most) {
  const int64_t all = (static_cast<int64_t>(ids.size()) - 1) / tokens, count = std::min(all, most);
  Stretches out;
  for (int64_t n = 0; n < count; ++n) {
    const auto first = ids.begin() + n * all / count * tokens;
    out.emplace_back(first, first + tokens + 1);
  }
  return out;
}

Stretches heldout_stretches(const fs::path& corpus, SequenceOptions how, int64_t tokens, int64_t most) {
  how.shuffle = false;
  how.bos_per_sequence = false;
  how.length = tokens + 1;
  return spread(Sequences(corpus, "validation", how), how.length, most);
}

std::vector<eval::Window> length_windows(const Stretches& stretches, int64_t length, std::optional<int32_t> bos) {
  std::vector<eval::Window> windows;
  for (const std::vector<int64_t>& stretch : stretches) {
    const auto tokens = static_cast<int64_t>(stretch.size()) - 1;
    for (int64_t at = 0; at < tokens; at += length) {
      const int64_t end = std::min(at + length, tokens);
      eval::Window window{{stretch.begin() + at, stretch.begin() + end},
                          {stretch.begin() + at + 1, stretch.begin() + end + 1}};
      if (bos) window.input[0] = *bos;
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

std::vector<double> stretch_losses(const Stretches& stretches, const std::vector<eval::Score>& scores) {
  std::vector<double> losses(stretches.size());
  // All stretches have equal length, and therefore the same number of windows.
  for (size_t w = 0; w < scores.size(); ++w) losses[w * stretches.size() / scores.size()] -= scores[w].log_likelihood;
  for (double& loss : losses) loss /= static_cast<double>(stretches.front().size() - 1);
  return losses;
}

std::vector<double> stretch_losses(LanguageModel& model, const Stretches& stretches, int64_t length,
                                   std::optional<int32_t> bos, const std::string& title) {
  return stretch_losses(stretches, eval::score(model, length_windows(stretches, length, bos),
                                               {std::max<int64_t>(1, 2048 / length), title}));
}

std::vector<double> thinned(const std::vector<double>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<double> out;
  for (size_t n = 0; n < most; ++n) {
    const size_t begin = n * values.size() / most, end = (n + 1) * values.size() / most;
    double total = 0;
    for (size_t i = begin; i < end; ++i) total += values[i];
    out.push_back(total / static_cast<double>(end - begin));
  }
  return out;
}

namespace {

constexpr int64_t kMaxMeasuredBytes = 16 << 20;

// A file with a zero byte in its first 4096 bytes is treated as binary.
bool is_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return !head.empty() && head.find('\0') == std::string::npos;
}

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

std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      if (!fs::exists(path)) fail("repro", "{}: expected a file or folder of text, but the path does not exist", path);
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string extension = entry.path().extension().string();
      const bool packed = extension == ".gz" || extension == ".zst" || extension == ".parquet";
      if (entry.is_regular_file() && (packed || is_text(entry.path()))) inside.push_back(entry.path().string());
    }
    if (inside.empty()) fail("repro", "{}: the folder contains no text files", path);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  DocumentReader reader(find_sources(files, TextFormat::plain), {});
  std::vector<int32_t> ids;
  RawBatch raw;
  int64_t bytes = 0;
  while (bytes < kMaxMeasuredBytes && reader.next(raw)) {
    for (const std::string& document : extract_documents(std::move(raw), reader.options()).documents) {
      const auto more = tokenizer.encode(document);
      ids.insert(ids.end(), more.begin(), more.end());
      bytes += static_cast<int64_t>(document.size());
    }
    raw = {};
  }
  return ids;
}

HeldOutWindows heldout_windows(const ModelConfig& model, const fs::path& corpus, SequenceOptions how, int64_t most) {
  how.shuffle = false;
  const Sequences sequences(corpus, "validation", how);
  check_corpus(model, sequences.tokenizer_fingerprint(), sequences.vocab_size(), corpus.string());
  const int64_t all = sequences.size();
  if (all == 0) fail("repro", "{}: the validation split has no sequence of {} tokens", corpus.string(), how.length);
  return {length_windows(spread(sequences, how.length, most), how.length - 1, {}), all <= most,
          sequences.bytes_per_token()};
}

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
