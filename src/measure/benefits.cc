// Practical benefits of a model without attention sinks: smaller activation outliers, and a smaller loss increase from
// low-bit quantization and from small KV caches.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/statistics.h"
#include "core/stop.h"
#include "eval/score.h"
#include "measure/experiment.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/quantization.h"
#include "ops/decode.h"
#include "sinks/outliers.h"

namespace lazy::measure {
std::vector<double> text_losses(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts, int64_t first,
                                int64_t batch, const std::optional<StreamingCache>& cache) {
  std::vector<eval::Window> windows;
  for (const auto& text : texts) windows.push_back({{text.begin(), text.end() - 1}, {text.begin() + 1, text.end()}});
  std::vector<double> out;
  const eval::ScoreOptions options{
      .batch_size = batch, .title = "", .cache = cache, .targets = true, .share_prefixes = false};
  for (const eval::Score& score : eval::score(model, windows, options)) {
    double sum = 0;
    for (size_t n = static_cast<size_t>(first); n < score.targets.size(); ++n) sum -= score.targets[n].log_likelihood;
    out.push_back(sum / static_cast<double>(score.targets.size() - static_cast<size_t>(first)));
  }
  return out;
}

// Measures the outliers of activations. For each probed activation, returns the mean over layers for each text, and the
// mean over texts for each layer.
Json outliers_experiment(const ExperimentInputs& run) {
  const auto length = std::min(run.settings.at("length").get<int64_t>(), experiment_model(run).config().max_length);
  ModelAndTexts subject = model_and_texts(run, run.settings.at("texts").get<int64_t>(), length);
  const at::NoGradGuard no_grad;
  Json out{{"length", length}, {"places", Json::object()}};
  sinks::Outliers all(subject.model.config().num_layers);
  const auto pass = [&](sinks::Outliers& outliers, const std::vector<int64_t>& text) {
    ActivationHooks probes;
    outliers.attach(probes);
    subject.model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(subject.model.device()),
                          {.activation_hooks = &probes});
  };
  for (const auto& text : subject.texts) {
    end_if_stopped("measure");
    pass(all, text);
    sinks::Outliers own(subject.model.config().num_layers);
    pass(own, text);
    for (const auto& [place, layers] : own.result()) {
      double kurtosis = 0, ratio = 0;
      for (const auto& layer : layers)
        kurtosis += layer.kurtosis / double(layers.size()), ratio += layer.ratio / double(layers.size());
      out["places"][place]["kurtosis"].push_back(kurtosis);
      out["places"][place]["ratio"].push_back(ratio);
    }
  }
  for (const auto& [place, layers] : all.result()) {
    for (const auto& layer : layers) {
      out["places"][place]["by_layer"].push_back({{"kurtosis", layer.kurtosis},
                                                  {"kurtosis_first", layer.kurtosis_first},
                                                  {"ratio", layer.ratio},
                                                  {"spikes", layer.spikes},
                                                  {"dimension_share", layer.dimension_share}});
    }
  }
  return out;
}

Json quantization_experiment(const ExperimentInputs& run) {
  const auto length = std::min(run.settings.at("length").get<int64_t>(), experiment_model(run).config().max_length);
  ModelAndTexts plain = model_and_texts(run, run.settings.at("texts").get<int64_t>(), length);
  Json out{{"length", length}, {"full", text_losses(plain.model, plain.texts, /*first=*/0, /*batch=*/1)}};
  for (const auto& format : run.settings.at("formats").get<std::vector<std::string>>()) {
    end_if_stopped("measure");
    LanguageModel model = experiment_model(run);
    model.quantize(Quantization::parse(format, "formats"));
    // Scores one text at a time, because a per-tensor quantization scale would otherwise depend on the other texts of a
    // batch.
    out["formats"][format] = text_losses(model, plain.texts, /*first=*/0, /*batch=*/1);
  }
  return out;
}

namespace {

double perplexity(const std::vector<double>& losses) { return std::exp(mean_of(losses)); }

// For each length n, returns the bytes of V (in fp32, over all layers) that a decode step after n tokens reads, and the
// fraction of the cached rows of V that it reads. The values are means over texts and over the last `decoded` tokens.
Json value_reads(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts,
                 const std::vector<int64_t>& lengths, int64_t decoded, const std::optional<StreamingCache>& cache) {
  const at::NoGradGuard no_grad;
  const ModelConfig& c = model.config();
  const int64_t a_key = c.num_kv_cache_layers() * c.attention.num_kv_heads;
  // length -> number of rows of V: rows that decode steps read, and rows in the cache
  std::map<int64_t, double> read, held;
  for (const auto& text : texts) {
    const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0);
    KVCache kept{.streaming = cache};
    int64_t done = 0;
    for (const int64_t length : lengths) {
      end_if_stopped("measure");
      const int64_t before = length - decoded - done;
      if (before > 0) model.forward(ids.narrow(1, done, before), {.cache = &kept});
      const ops::ValueRowCount count;
      for (done = length - decoded; done < length; ++done) {
        held[length] += double(a_key * (kept.length + 1));
        model.forward(ids.narrow(1, done, 1), {.cache = &kept});
      }
      read[length] += double(count.rows());
    }
  }
  Json out;
  for (const auto& [length, rows] : read) {
    out[std::to_string(length)] = {
        {"fp32_bytes", rows / double(texts.size()) / double(decoded) * double(c.attention.head_dim * 4)},
        {"share", rows / held.at(length)}};
  }
  return out;
}

}  // namespace

// Compares types of KV caches. For each type, returns the loss on the tokens after the first `counted_from` tokens (the
// same tokens for every type), the bytes that the cache stores, and the bytes of V that decode steps read. The bytes
// read are measured on a CPU in fp32.
Json cache_experiment(const ExperimentInputs& run) {
  const auto length = run.settings.at("length").get<int64_t>(), from = run.settings.at("counted_from").get<int64_t>(),
             decoded = run.settings.at("decoded").get<int64_t>();
  const auto lengths = run.settings.at("read_at").get<std::vector<int64_t>>();
  int64_t least = decoded;
  bool fits = decoded > 0 && !lengths.empty() && lengths.back() <= length;
  for (const int64_t at : lengths) fits &= at >= least, least = at + decoded;
  if (!fits)
    fail("measure", "cache: read_at: expected lengths up to {} that increase by at least 'decoded' ({}), found {}",
         length, decoded, run.settings.at("read_at").dump());
  ModelAndTexts subject = model_and_texts(run, run.settings.at("texts").get<int64_t>(), length + 1);
  ExperimentInputs on_cpu = run;
  on_cpu.device = "cpu";
  LanguageModel reader = experiment_model(on_cpu);
  const auto some = std::min<size_t>(subject.texts.size(), run.settings.at("read_texts").get<size_t>());
  const std::vector<std::vector<int64_t>> read(subject.texts.begin(), subject.texts.begin() + std::ptrdiff_t(some));
  const ModelConfig& c = subject.model.config();
  const int64_t a_token = c.num_kv_cache_layers() * c.attention.num_kv_heads * c.attention.head_dim * 2 * 4;
  const auto full = text_losses(subject.model, subject.texts, from, /*batch=*/0);
  Json out{{"length", length},
           {"full", full},
           {"full_perplexity", perplexity(full)},
           {"full_fp32_bytes", length * a_token},
           {"values", {{"full", value_reads(reader, read, lengths, decoded, std::nullopt)}}}};
  for (const auto& name : run.settings.at("caches").get<std::vector<std::string>>()) {
    end_if_stopped("measure");
    const StreamingCache cache = StreamingCache::parse(name, "caches");
    const auto loss = text_losses(subject.model, subject.texts, from, /*batch=*/0, cache);
    out["caches"][name] = {{"loss", loss}, {"perplexity", perplexity(loss)}, {"fp32_bytes", cache.size() * a_token}};
    out["values"][name] = value_reads(reader, read, lengths, decoded, cache);
  }
  return out;
}

}  // namespace lazy::measure
