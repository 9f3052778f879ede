// Measures the time of trained models and the fraction of keys with nonzero weight on held-out text, by context length.
// It times prefill and decode of the whole model, and prefill and decode of its attention operator alone. The operator
// gets the queries, keys and values that the model computes for this text.
#include "measure/latency.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>

#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/statistics.h"
#include "core/stop.h"
#include "measure/experiment.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "ops/attention_weights.h"
#include "ops/decode.h"
#include "sinks/measures.h"
#include "sinks/text_source.h"
#include "train/optimizer.h"

namespace lazy::measure {
namespace fs = std::filesystem;

namespace {

void add_baselines(std::vector<LatencyVariant>& variants, const std::map<std::string, fs::path>& baselines,
                   const std::string& device, const std::string& dtype) {
  for (const auto& [model, place] : baselines) variants.push_back({model, LanguageModel::load(place)});
  for (LatencyVariant& variant : variants) {
    if (!variant.model.config().all_attention())
      fail("measure", "latency: {}: expected attention in every layer, found {}", variant.name,
           name(variant.model.config().mixer.type));
    if (device == "cuda") variant.model.to(at::Device(at::kCUDA, 0));
    variant.model.set_compute_dtype(dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  }
}

}  // namespace

std::vector<LatencyVariant> latency_variants(const fs::path& folder, const std::map<std::string, fs::path>& baselines,
                                             const std::string& device, const std::string& dtype) {
  const at::NoGradGuard guard;
  std::vector<LatencyVariant> out;
  out.push_back({kAsTrained, LanguageModel::load(folder)});
  const ModelConfig config = out.front().model.config();
  if (config.attention.normalizer != Normalizer::elastic)
    fail("measure", "model_latency: {}: expected a model with Elastic-Softmax, found {}", folder.string(),
         name(config.attention.normalizer));
  out.push_back({kAllAlive, LanguageModel::load(folder)});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) out.back().model.tau(layer).zero_();
  ModelConfig softmax = config;
  softmax.attention.normalizer = Normalizer::softmax;
  out.push_back({kOnePass, LanguageModel(softmax, 0)});
  const auto& trained = out.front().model.stored();
  const std::map<std::string, at::Tensor> weights(trained.begin(), trained.end());
  for (const auto& [stored, tensor] : out.back().model.stored()) tensor.copy_(weights.at(stored));
  add_baselines(out, baselines, device, dtype);
  return out;
}

namespace {

using Doubles = std::vector<double>;

struct Sizes {
  int64_t texts, rounds;  // rounds: number of repetitions per text
  int64_t decoded;        // number of tokens that are decoded sequentially
  int64_t batch;          // number of sequences that are decoded in one batch; they are copies of the same text
};

double milliseconds(at::Device device, const std::function<void()>& work) {
  const auto wait = [&] {
    if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  wait();
  const auto begin = Clock::now();
  work();
  wait();
  return 1e3 * seconds_since(begin);
}

// The queries, keys and values that the attention operator receives in every layer.
struct AttentionInputs {
  std::vector<at::Tensor> q, k, v;  // one tensor (batch, length, heads, head_dim) per layer
};

AttentionInputs prefill_inputs(LanguageModel& model, const at::Tensor& ids) {
  AttentionInputs out;
  ActivationHooks hooks;
  hooks.read("layers.*.attention.v", [&](const std::string&, const at::Tensor& v) { out.v.push_back(v); });
  ForwardOptions options;
  options.activation_hooks = &hooks;
  options.on_attention_input = [&](int64_t, const at::Tensor& q, const at::Tensor& k) {
    out.q.push_back(q), out.k.push_back(k);
  };
  model.forward(ids, options);
  return out;
}

// Returns the logits after the last token.
at::Tensor next_logits(LanguageModel& model, const at::Tensor& ids, KVCache& cache) {
  const at::Tensor hidden = model.forward(ids, {.cache = &cache}).hidden;
  return model.logits(hidden.select(1, hidden.size(1) - 1));
}

// Returns the KV cache after `ids` (1, length), expanded to `batch` copies of the text, with capacity for `more`
// tokens.
KVCache filled_cache(LanguageModel& model, const at::Tensor& ids, int64_t batch, int64_t more) {
  KVCache cache;
  next_logits(model, ids, cache);
  for (auto* tensors : {&cache.keys, &cache.values}) {
    for (at::Tensor& t : *tensors) {
      const at::Tensor room = at::empty({batch, cache.length + more, t.size(2), t.size(3)}, t.options());
      room.narrow(1, 0, cache.length).copy_(t.narrow(1, 0, cache.length));
      t = room;
    }
  }
  return cache;
}

// Decodes `tokens` from a copy of the cache. The copies share storage: every call overwrites the entries after the
// initial length.
void decode_all(LanguageModel& model, KVCache cache, const at::Tensor& tokens) {
  for (int64_t n = 0; n < tokens.size(1); ++n)
    next_logits(model, tokens.narrow(1, n, 1), cache)
        .argmax(-1)
        .to(at::kCPU);  // copying to the CPU synchronizes after every token, like a sampler
}

double alive_in_prefill(LanguageModel& model, const at::Tensor& ids) {
  ForwardOptions options;
  options.return_stats = true;
  sinks::MeasureSum sum(sinks::segments_of(model.config()));
  sum.add(model.forward(ids, options).stats, sinks::layer_windows(model.config()));
  return sinks::mean(sum.result().alive_fraction);
}

// Returns the mean fraction of keys with nonzero weight over the decoded tokens, layers and heads.
double alive_in_decode(LanguageModel& model, KVCache cache, const at::Tensor& tokens) {
  const auto windows = sinks::layer_windows(model.config());
  ForwardOptions options;
  options.return_stats = true;
  options.cache = &cache;
  double sum = 0;
  for (int64_t n = 0; n < tokens.size(1); ++n) {
    const auto stats = model.forward(tokens.narrow(1, n, 1), options).stats;
    for (size_t layer = 0; layer < stats.size(); ++layer) {
      const int64_t visible = windows[layer] > 0 ? std::min(cache.length, windows[layer]) : cache.length;
      sum += stats[layer].select(0, 2).mean().item<double>() / double(visible) / double(stats.size());
    }
  }
  return sum / static_cast<double>(tokens.size(1));
}

// The measurements of one variant at one length: one value per text and round.
struct Found {
  Doubles prefill, decode, attention_prefill, attention_decode, train;  // times in ms; decode times are per token
  Doubles alive_prefill, alive_decode;
};

Json spread(const Doubles& times) {
  const ConfidenceInterval quartiles = central_interval(times, 0.5);
  return {{"median", median_of(times)}, {"quartiles", {quartiles.low, quartiles.high}}};
}

Json to_json(const Found& f) {
  return {{"prefill_ms", spread(f.prefill)},
          {"decode_ms", spread(f.decode)},
          {"attention_prefill_ms", spread(f.attention_prefill)},
          {"attention_decode_ms", spread(f.attention_decode)},
          {"alive_prefill", mean_of(f.alive_prefill)},
          {"alive_decode", mean_of(f.alive_decode)}};
}

// The number of variants of one model that latency_variants returns.
constexpr size_t kForms = 3;

struct Timer {
  std::vector<LatencyVariant>& variants;
  const Sizes& sizes;
  std::vector<Found>& found;  // [variant]
  // The number of variants at the beginning of the list that share the weights of one model. The time of their
  // attention operators is measured with the inputs and the KV cache of the first of these variants, so that all of
  // them process equal data.
  size_t forms = 1;

  size_t source(size_t v) const { return v < forms ? 0 : v; }

  LanguageModel& model(size_t v) const { return variants[v].model; }
  // Calls work(v) for every variant v, once as a warm-up and then once per round. Each round starts with a different
  // variant, so that a slowdown of the machine affects all variants equally. Appends the time, divided by `each`, to
  // the list `where` of the variant.
  void time(Doubles Found::*where, int64_t each, const std::function<void(size_t)>& work) const {
    for (size_t v = 0; v < variants.size(); ++v) work(v);
    for (int64_t round = 0; round < sizes.rounds; ++round) {
      end_if_stopped("measure");
      for (size_t n = 0; n < variants.size(); ++n) {
        const size_t v = (n + static_cast<size_t>(round)) % variants.size();
        (found[v].*where).push_back(milliseconds(model(v).device(), [&] { work(v); }) / static_cast<double>(each));
      }
    }
  }
  std::vector<std::vector<ops::AttentionTerms>> terms() const {  // [variant][layer]
    std::vector<std::vector<ops::AttentionTerms>> out;
    for (size_t v = 0; v < variants.size(); ++v) {
      out.emplace_back();
      for (int64_t layer = 0; layer < model(v).config().num_layers; ++layer)
        out.back().push_back(model(v).attention_terms(layer));
    }
    return out;
  }
};

void time_prefill(const Timer& timer, const at::Tensor& ids) {
  timer.time(&Found::prefill, 1, [&](size_t v) {
    KVCache cache;
    next_logits(timer.model(v), ids, cache);
  });
  std::vector<AttentionInputs> inputs(timer.variants.size());
  for (size_t v = 0; v < inputs.size(); ++v) {
    timer.found[v].alive_prefill.push_back(alive_in_prefill(timer.model(v), ids));
    if (timer.source(v) == v) inputs[v] = prefill_inputs(timer.model(v), ids);
  }
  const auto terms = timer.terms();
  timer.time(&Found::attention_prefill, 1, [&](size_t v) {
    const AttentionInputs& in = inputs[timer.source(v)];
    for (size_t layer = 0; layer < in.q.size(); ++layer) {
      const ops::AttentionTerms& own = terms[v][layer];
      ops::attention(in.q[layer], in.k[layer], in.v[layer], own.distance_bias, own.tau, own.options);
    }
  });
}

// Runs a decode step for the first of `tokens`, which appends the keys of this token to the cache. Returns the queries
// of all layers in this step.
std::vector<at::Tensor> decode_queries(LanguageModel& model, KVCache cache, const at::Tensor& tokens) {
  std::vector<at::Tensor> out;
  ForwardOptions options;
  options.cache = &cache;
  options.on_attention_input = [&](int64_t, const at::Tensor& q, const at::Tensor&) { out.push_back(q); };
  model.forward(tokens.narrow(1, 0, 1), options);
  return out;
}

// Measures the time to decode `tokens` (1, decoded), which follow `ids` (1, length).
void time_decode(const Timer& timer, const at::Tensor& ids, const at::Tensor& tokens) {
  const int64_t batch = timer.sizes.batch, decoded = timer.sizes.decoded;
  const at::Tensor each = tokens.expand({batch, decoded}).contiguous();
  std::vector<KVCache> caches(timer.variants.size());
  for (size_t v = 0; v < caches.size(); ++v) {
    if (timer.source(v) == v) caches[v] = filled_cache(timer.model(v), ids, batch, decoded);
    timer.found[v].alive_decode.push_back(alive_in_decode(timer.model(v), caches[timer.source(v)], each));
  }
  timer.time(&Found::decode, decoded, [&](size_t v) { decode_all(timer.model(v), caches[timer.source(v)], each); });
  std::vector<std::vector<at::Tensor>> queries(caches.size());
  for (size_t v = 0; v < caches.size(); ++v) {
    if (timer.source(v) == v) queries[v] = decode_queries(timer.model(v), caches[v], each);
  }
  const auto terms = timer.terms();
  const at::Tensor lengths = at::full({batch}, ids.size(1) + 1, each.options());
  timer.time(&Found::attention_decode, decoded, [&](size_t v) {
    const KVCache& cache = caches[timer.source(v)];
    for (int64_t n = 0; n < decoded; ++n) {
      for (size_t layer = 0; layer < cache.keys.size(); ++layer) {
        const ops::AttentionTerms& own = terms[v][layer];
        ops::decode(queries[timer.source(v)][layer], cache.keys[layer], cache.values[layer], lengths, own.distance_bias,
                    own.tau, own.options);
      }
    }
  });
}

using Texts = std::vector<std::vector<int64_t>>;

// Returns held-out texts for every length. They begin with BOS, and `decoded` additional tokens follow each text.
std::map<int64_t, Texts> held_out(const ExperimentInputs& run, const std::vector<int64_t>& lengths,
                                  const Sizes& sizes) {
  const auto tokenizer = load_tokenizer(run.settings.at("model").get<std::string>());
  const auto corpus = run.settings.at("corpus").get<std::string>();
  const auto ids = sinks::corpus_source(*tokenizer, corpus, "validation").ids;
  std::map<int64_t, Texts> out;
  for (const int64_t length : lengths) {
    Texts texts = sinks::spread_samples(ids, length + sizes.decoded, sizes.texts, tokenizer->bos_id());
    if (texts.empty())
      fail("measure", "{}: {}: expected at least {} tokens of held-out text ({} of context and {} to decode), found {}",
           run.settings.at("study").get<std::string>(), corpus, length + sizes.decoded, length, sizes.decoded,
           ids.size());
    out[length] = std::move(texts);
  }
  return out;
}

}  // namespace

namespace {

struct Timing {
  Sizes sizes;
  std::vector<int64_t> lengths;
  std::map<int64_t, Texts> texts;  // length -> texts
  std::map<std::string, fs::path> baselines;
  std::string dtype;
};

Timing timing_of(const ExperimentInputs& run, std::vector<const char*> needed) {
  const Json& s = run.settings;
  const auto study = s.at("study").get<std::string>();
  needed.insert(needed.begin(), {"lengths", "texts", "rounds", "decoded", "batch", "dtype"});
  for (const char* name : needed) {
    if (!s.contains(name)) fail("measure", "{}: settings: '{}' is missing", study, name);
  }
  const auto size = [&](const char* name) {
    const auto value = s.at(name).get<int64_t>();
    if (value < 1) fail("measure", "{}: {}: expected at least 1, found {}", study, name, value);
    return value;
  };
  Timing out{{size("texts"), size("rounds"), size("decoded"), size("batch")},
             s.at("lengths").get<std::vector<int64_t>>(),
             {},
             {},
             s.at("dtype").get<std::string>()};
  if (out.lengths.empty() || *std::min_element(out.lengths.begin(), out.lengths.end()) < 1)
    fail("measure", "{}: lengths: expected numbers of at least 1, found {}", study, s.at("lengths").dump());
  if (out.dtype != "fp32" && out.dtype != "bf16")
    fail("measure", "{}: dtype: expected fp32 or bf16, found {}", study, out.dtype);
  out.texts = held_out(run, out.lengths, out.sizes);
  const Json others = s.value("baselines", Json::object());
  for (const auto& [other, folder] : others.items()) out.baselines[other] = folder.get<std::string>();
  return out;
}

// Calls use(found, ids (1, length), the tokens that follow) for every text of every length.
template <typename Use>
std::map<int64_t, std::vector<Found>> over_texts(const ExperimentInputs& run, const Timing& plan,
                                                 std::vector<LatencyVariant>& variants, const Use& use) {
  std::optional<Progress> progress;
  uint64_t done = 0, total = 0;
  for (const auto& [length, of_length] : plan.texts) total += of_length.size();
  if (run.progress) progress.emplace("latency", total, "texts");
  std::map<int64_t, std::vector<Found>> out;
  for (const int64_t length : plan.lengths) {
    std::vector<Found>& found = out[length];
    found.resize(variants.size());
    for (const auto& text : plan.texts.at(length)) {
      const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0).to(variants.front().model.device());
      use(found, ids.narrow(1, 0, length), ids.narrow(1, length, plan.sizes.decoded));
      if (progress) progress->update(++done);
    }
  }
  if (progress) progress->finish();
  return out;
}

// Measures the time of a training step: loss, gradients and the AdamW update. The learning rate of 0 leaves the weights
// unchanged.
void time_training(const Timer& timer, const at::Tensor& ids, int64_t sequences) {
  const at::AutoGradMode gradients(true);
  const at::Tensor batch = ids.expand({sequences, ids.size(1)}).contiguous(), labels = at::roll(batch, -1, 1);
  std::vector<train::AdamW> optimizers;
  for (size_t v = 0; v < timer.variants.size(); ++v)
    optimizers.emplace_back(timer.model(v).parameters(), train::AdamWOptions{});
  timer.time(&Found::train, 1, [&](size_t v) {
    timer.model(v).loss(batch, labels).backward();
    optimizers[v].step(0, optimizers[v].gradient_norm(), 1);
  });
}

}  // namespace

Json model_latency_experiment(const ExperimentInputs& run) {
  const Timing plan = timing_of(run, {});
  const at::NoGradGuard guard;
  auto variants = latency_variants(run.settings.at("model").get<std::string>(), plan.baselines, run.device, plan.dtype);
  const auto found =
      over_texts(run, plan, variants, [&](auto& of_length, const at::Tensor& ids, const at::Tensor& next) {
        const Timer timer{variants, plan.sizes, of_length, kForms};
        time_prefill(timer, ids);
        time_decode(timer, ids, next);
      });
  Json out{{"dtype", plan.dtype}, {"batch", plan.sizes.batch}};
  for (const int64_t length : plan.lengths) {
    for (size_t v = 0; v < variants.size(); ++v)
      out[variants[v].name][std::to_string(length)] = to_json(found.at(length)[v]);
  }
  return out;
}

Json speed_experiment(const ExperimentInputs& run) {
  const Timing plan = timing_of(run, {"train_tokens"});
  const auto tokens = run.settings.at("train_tokens").get<int64_t>();
  const at::NoGradGuard guard;
  std::vector<LatencyVariant> variants;
  variants.push_back({kAsTrained, LanguageModel::load(run.settings.at("model").get<std::string>())});
  add_baselines(variants, plan.baselines, run.device, plan.dtype);
  const auto found =
      over_texts(run, plan, variants, [&](auto& of_length, const at::Tensor& ids, const at::Tensor& next) {
        const Timer timer{variants, plan.sizes, of_length};
        time_training(timer, ids, std::max<int64_t>(1, tokens / ids.size(1)));
        time_decode(timer, ids, next);
      });
  Json out{{"dtype", plan.dtype}, {"batch", plan.sizes.batch}, {"train_tokens", tokens}};
  for (const int64_t length : plan.lengths) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const Found& f = found.at(length)[v];
      out[variants[v].name][std::to_string(length)] = {
          {"train_ms", spread(f.train)}, {"decode_ms", spread(f.decode)}, {"alive_decode", mean_of(f.alive_decode)}};
    }
  }
  return out;
}

}  // namespace lazy::measure
