#include "sinks/analysis.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/stop.h"
#include "core/text.h"
#include "model/activation_hooks.h"
#include "model/config.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "sinks/probe_measures.h"
#include "sinks/scoped_interventions.h"

namespace lazy::sinks {

namespace {

// Maximum number of tokens per forward pass if several short samples are processed together.
constexpr int64_t kTokensPerPass = 4096;
// Maximum size in bytes of the hidden states that pass through a layer together if layers are loaded one at a time.
constexpr int64_t kHiddenBytes = int64_t{1} << 30;

// Converts samples to tensors of at most `batch` rows.
std::vector<at::Tensor> batches_of(const std::vector<std::vector<int64_t>>& samples, size_t batch, at::Device device) {
  const auto length = static_cast<int64_t>(samples.front().size());
  std::vector<at::Tensor> out;
  for (size_t begin = 0; begin < samples.size(); begin += batch) {
    const size_t count = std::min(batch, samples.size() - begin);
    at::Tensor ids = at::empty({static_cast<int64_t>(count), length}, at::kLong);
    for (size_t i = 0; i < count; ++i) {
      std::copy(samples[begin + i].begin(), samples[begin + i].end(),
                ids.data_ptr<int64_t>() + static_cast<int64_t>(i) * length);
    }
    out.push_back(ids.to(device));
  }
  return out;
}

// Runs forward passes over all samples and calls `use` with the statistics of each batch. If layers are loaded one at a
// time, several batches can pass through a layer together; `apart` prevents this, for probes that store state in a
// pass.
template <typename Use>
void pass_over(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples, const std::string& title,
               const ActivationHooks* probes, bool apart, const Use& use) {
  ForwardOptions options;
  options.activation_hooks = probes;
  options.return_stats = true;
  const auto length = static_cast<int64_t>(samples.front().size());
  const auto batch = static_cast<size_t>(std::max<int64_t>(1, kTokensPerPass / length));
  const std::vector<at::Tensor> batches = batches_of(samples, batch, model.device());
  const int64_t bytes = batches.front().numel() * model.config().hidden_size * 2 *
                        // 2: the output of a layer and the residual stream are in memory at the same time
                        static_cast<int64_t>(sizeof(float));
  const size_t together =
      model.offloaded() && !apart ? static_cast<size_t>(std::max<int64_t>(1, kHiddenBytes / bytes)) : 1;
  std::unique_ptr<Progress> progress;
  if (!title.empty())
    progress = std::make_unique<Progress>(title, samples.size() * static_cast<uint64_t>(length), "tokens");
  if (progress) progress->update(0);  // shows the bar before the first layer ends, which can take minutes
  int64_t done = 0;
  for (size_t begin = 0; begin < batches.size(); begin += together) {
    const std::vector<at::Tensor> group(
        batches.begin() + static_cast<long>(begin),
        batches.begin() + static_cast<long>(std::min(begin + together, batches.size())));
    int64_t tokens = 0;
    for (const at::Tensor& ids : group) tokens += ids.numel();
    const auto step = [&](double share) {
      end_if_stopped("sinks");
      if (progress)
        progress->update(static_cast<uint64_t>(done) + static_cast<uint64_t>(share * static_cast<double>(tokens)));
    };
    for (const ForwardResult& result : model.forward_each(group, options, step)) use(result.stats);
    done += tokens;
  }
  if (progress) progress->finish();
}

using Heads = std::vector<std::pair<int64_t, int64_t>>;  // pairs of 0-based layer and head

// Selects up to four evenly spaced layers, and returns the head with the highest sink ratio in each of them.
Heads strongest_sinks(const HeadMatrix& sink_ratio) {
  Heads heads;
  const auto layers = static_cast<int64_t>(sink_ratio.size()), shown = std::min<int64_t>(4, layers);
  for (int64_t n = 0; n < shown; ++n) {
    const int64_t layer = shown == 1 ? 0 : n * (layers - 1) / (shown - 1);
    const auto& row = sink_ratio[static_cast<size_t>(layer)];
    heads.emplace_back(layer, std::max_element(row.begin(), row.end()) - row.begin());
  }
  return heads;
}

// Returns the layers and heads of the attention maps in a sinks.json. Version 1 of the file counts them from 1.
Heads heads_of_maps(const std::string& file) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(read_file(file));
  } catch (const nlohmann::json::exception& error) {  // syntax errors and numbers out of range
    fail("sinks", "--maps {}: expected a JSON file, found {}", file, std::string(error.what()));
  }
  const JsonField top("sinks", json, file), version = top["version"];
  const double number = version.number();
  if (number != 1 && number != 2) version.wrong("1 or 2");
  Heads heads;
  if (!top.has("attention_maps")) return heads;
  const int64_t first = number == 1 ? 1 : 0;
  const JsonField maps = top["attention_maps"];
  for (size_t i = 0; i < maps.size(); ++i) {
    const JsonField map = maps.at(i);
    heads.emplace_back(static_cast<int64_t>(map["layer"].number()) - first,
                       static_cast<int64_t>(map["head"].number()) - first);
  }
  return heads;
}

// Parses --maps: "1:3,3:0" lists heads, "all" selects all heads, "none" and "auto" select no heads here, and the path
// of a sinks.json selects the heads of the maps in that file.
Heads named_heads(const std::string& maps, const ModelConfig& config) {
  Heads heads;
  if (maps == "none" || maps == "auto") return heads;
  for (int64_t n = 0; maps == "all" && n < config.num_layers * config.attention.num_heads; ++n)
    heads.emplace_back(n / config.attention.num_heads, n % config.attention.num_heads);
  if (!heads.empty()) return heads;
  if (maps.ends_with(".json")) {
    for (const auto& [layer, head] : heads_of_maps(maps)) {
      if (layer < 0 || head < 0 || layer >= config.num_layers || head >= config.attention.num_heads) {
        fail("sinks", "--maps {}: expected maps of layers 0 to {} and heads 0 to {}, found layer {}, head {}", maps,
             config.num_layers - 1, config.attention.num_heads - 1, layer, head);
      }
      heads.emplace_back(layer, head);
    }
    return heads;
  }
  for (const std::string& item : split(maps, ',')) {
    int64_t layer = 0, head = 0;
    const char *begin = item.data(), *end = begin + item.size();
    const auto [colon, error] = std::from_chars(begin, end, layer);
    const auto last = error == std::errc() && colon != end && *colon == ':'
                          ? std::from_chars(colon + 1, end, head)
                          : std::from_chars_result{begin, std::errc::invalid_argument};
    if (last.ec != std::errc() || last.ptr != end || layer < 0 || head < 0 || layer >= config.num_layers ||
        head >= config.attention.num_heads) {
      fail("sinks",
           "--maps {}: expected auto, all, none, a .json file or LAYER:HEAD,... with layers 0 to {} and heads 0 to {}, "
           "found '{}'",
           maps, config.num_layers - 1, config.attention.num_heads - 1, item);
    }
    heads.emplace_back(layer, head);
  }
  return heads;
}

// Returns the text of each token id, for labels. If the bytes of a character are split over several tokens, the label
// of the last of these tokens contains the character.
std::vector<std::string> token_texts(const Tokenizer& tokenizer, const std::vector<int64_t>& ids, bool bos) {
  std::vector<std::string> texts;
  std::string pending;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 0 && bos) {
      texts.push_back("⟨BOS⟩");
      continue;
    }
    pending += tokenizer.piece(static_cast<int32_t>(ids[i]));
    const size_t whole = complete_utf8_prefix(pending);
    texts.push_back(to_valid_utf8(pending.substr(0, whole)));
    pending.erase(0, whole);
  }
  return texts;
}

}  // namespace

Analysis analyze(LanguageModel& model, const Tokenizer& tokenizer, const TextSource& source,
                 const AnalysisOptions& options) {
  if (options.bos && !tokenizer.bos_id()) fail("sinks", "--bos: the {} tokenizer has no BOS token", tokenizer.kind());
  for (const char* measure : {"weights", "vectors"}) {
    if (options.sink_samples == 0 && std::ranges::count(options.measures, measure) > 0)
      fail("sinks", "--measures {}: expected --sink-samples of at least 1, found 0", measure);
  }
  layer_windows(model.config());
  // before any measurement, because it throws for invalid --maps
  Heads heads = named_heads(options.maps, model.config());
  const std::optional<int32_t> bos = options.bos ? tokenizer.bos_id() : std::nullopt;
  const std::vector<int32_t>& ids = source.ids;
  Analysis result;
  result.text_tokens = static_cast<int64_t>(ids.size());
  const int64_t all = result.text_tokens + (bos ? 1 : 0);
  result.length = options.length > 0 ? options.length : std::min({kDefaultLength, model.config().max_length, all});
  result.sink_length = options.sink_length;
  for (int64_t length : {result.length, options.sink_samples > 0 ? result.sink_length : result.length}) {
    if (all < length || length < 2)
      fail("sinks", "{}: expected at least {} tokens for a sample, found {}", source.name, std::max<int64_t>(2, length),
           all);
  }
  const auto samples = spread_samples(ids, result.length, options.samples, bos);
  const auto sink_samples = spread_samples(ids, result.sink_length, options.sink_samples, bos);
  result.samples = static_cast<int64_t>(samples.size());
  result.sink_samples = static_cast<int64_t>(sink_samples.size());

  if (options.progress) {
    const std::string for_sink_1 = sink_samples.empty()
                                       ? ""
                                       : fmt::format(", and {} of {} tokens for Sink_1 (--sink-samples),",
                                                     counted(result.sink_samples, "sample"), result.sink_length);
    log::info("sinks: {} of {} tokens{} from {} of {}; {} of {}", counted(result.samples, "sample"), result.length,
              for_sink_1, counted(result.text_tokens, "token"), source.name,
              counted(model.config().num_attention_layers(), "attention layer"),
              counted(model.config().attention.num_heads, "head"));
  }

  const ScopedInterventions applied(model, options.interventions);
  FurtherMeasureCollector further(model, options.measures, options.threshold);
  const auto probed = [&](bool short_samples) {
    ActivationHooks probes = applied.probes();
    further.attach(probes, short_samples, needs_matrices(applied.probes(), model.config()));
    return probes;
  };
  MeasureSum sums(segments_of(model.config()));
  const auto windows = layer_windows(model.config());
  const ActivationHooks of_samples = probed(false), of_sink_samples = probed(true);
  pass_over(model, samples, options.progress ? "sinks" : "", of_samples.or_null(), applied.reads_activations(),
            [&](const auto& stats) { sums.add(stats, windows); });
  result.measures = sums.result();
  if (!sink_samples.empty()) {
    SinkRate rate(options.threshold);
    pass_over(model, sink_samples, options.progress ? "Sink_1" : "", of_sink_samples.or_null(),
              applied.reads_activations(), [&](const auto& stats) { rate.add(stats); });
    result.sink_1 = rate.result();
  }
  result.further = std::make_shared<const FurtherMeasures>(further.result());

  if (options.maps == "auto") heads = strongest_sinks(result.measures.sink_ratio);
  if (heads.empty()) return result;
  std::vector<int32_t> excerpt = tokenizer.encode(options.map_text.empty() ? source.prose : options.map_text);
  const int64_t most = std::min<int64_t>(64, options.map_tokens) - (bos ? 1 : 0);
  if (excerpt.empty()) fail("sinks", "--map-text: expected text with at least one token, found none");
  excerpt.resize(std::min(excerpt.size(), static_cast<size_t>(std::max<int64_t>(1, most))));
  std::vector<int64_t> map_ids(excerpt.begin(), excerpt.end());
  if (bos) map_ids.insert(map_ids.begin(), *bos);
  const auto weights = attention_weights(model, at::tensor(map_ids, at::kLong), heads, &applied.probes());
  const auto tokens = token_texts(tokenizer, map_ids, bos.has_value());
  for (size_t n = 0; n < heads.size(); ++n)
    result.maps.push_back({heads[n].first, heads[n].second, tokens, weights[n]});
  return result;
}

}  // namespace lazy::sinks
