// Experiments on models with learned positions and query biases (GPT-2): gamma and the effective positional encoding
// (EPE) computed from the weights alone, Delta measured on texts, and interventions.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "core/progress.h"
#include "core/random.h"
#include "core/stop.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"
#include "repro/experiments/toys.h"
#include "sinks/interventions.h"
#include "sinks/positional_signal.h"
#include "sinks/probe_measures.h"
#include "sinks/scoped_interventions.h"

namespace lazy::repro {

// Experiment: |gamma| of every layer, computed from the weights alone: its mean and standard deviation over all
// coordinates, and its value at each coordinate.

Json gamma_experiment(const ExperimentInputs& run) {
  LanguageModel model = experiment_model(run);
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  Json out{{"layers", config.num_layers}, {"hidden_size", config.hidden_size}, {"heads", config.attention.num_heads}};
  // The coordinates at which |EPE_1| (the effective positional encoding of the first position) is largest, for each
  // definition of EPE.
  for (const auto variant : sinks::kEffectivePositionVariants) {
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

// Experiment: effective positional encodings (EPE), and how well W_k EPE_j aligns with the query bias, from the weights
// alone.

Json positions_experiment(const ExperimentInputs& run) {
  LanguageModel model = experiment_model(run);
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  Json out{{"layers", config.num_layers}, {"positions", config.max_length}, {"hidden_size", config.hidden_size}};
  for (const auto variant : sinks::kEffectivePositionVariants) {
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

// Experiment: Delta_j = gamma . x_j on natural texts, where the first position is compared with all other positions in
// each layer.

namespace {

constexpr int64_t kBins = 48;

// Returns a histogram of `values` with kBins bins.
std::vector<double> counted(const at::Tensor& values, double low, double high) {
  return numbers_of(at::histc(values.to(at::kDouble), kBins, low, high));
}

}  // namespace

Json delta_experiment(const ExperimentInputs& run) {
  ModelAndTexts subject =
      model_and_texts(run, run.settings.at("texts").get<int64_t>(), run.settings.at("length").get<int64_t>());
  LanguageModel& model = subject.model;
  sinks::require_query_bias(model);
  const at::NoGradGuard no_grad;
  const int64_t layers = model.config().num_layers, heads = model.config().attention.num_heads;
  const at::Tensor epe = sinks::effective_positions(model, sinks::EffectivePositions::literal);
  std::vector<std::vector<at::Tensor>> delta(static_cast<size_t>(layers));  // [layer][text], (length, heads)
  std::vector<std::vector<double>> first_input(static_cast<size_t>(layers)),
      rest(static_cast<size_t>(layers));  // cosine similarities with the query bias b_Q
  ActivationHooks probes;
  probes.read("layers.*.attention.input", [&](const std::string& name, const at::Tensor& x) {
    const int64_t layer = sinks::layer_of(name);
    delta[static_cast<size_t>(layer)].push_back(sinks::delta_by_head(model, layer, x[0]));
    first_input[static_cast<size_t>(layer)].push_back(
        sinks::alignment(model, layer, x[0].slice(0, 0, 1)).item<double>());
  });
  probes.read("layers.*.residual", [&](const std::string& name, const at::Tensor& h) {
    const int64_t layer = sinks::layer_of(name);
    rest[static_cast<size_t>(layer)].push_back(
        sinks::alignment(model, layer, (h[0][0].to(at::kFloat) - epe[0]).unsqueeze(0)).item<double>());
  });
  ForwardOptions options;
  options.activation_hooks = &probes;
  std::unique_ptr<Progress> progress;
  if (run.progress) progress = std::make_unique<Progress>("delta", subject.texts.size(), "texts");
  for (size_t n = 0; n < subject.texts.size(); ++n) {
    end_if_stopped("repro");
    model.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0).to(model.device()), options);
    if (progress) progress->update(n + 1);
  }
  if (progress) progress->finish();
  Json out{{"layers", layers},
           {"heads", heads},
           {"texts", subject.texts.size()},
           {"bos", subject.bos},
           {"by_layer", Json::array()}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor by_head = at::stack(delta[static_cast<size_t>(layer)]),
                     all = by_head.sum(2);  // (texts, length, heads), (texts, length)
    const at::Tensor first = all.select(1, 0), others = all.slice(1, 1);
    const double low = all.min().item<double>(), high = all.max().item<double>() + 1e-9;
    out["by_layer"].push_back(
        {{"first", numbers_of(first)},
         {"others_mean", numbers_of(others.mean(1))},
         {"others_std", others.std(true).item<double>()},
         {"first_by_head", numbers_of(by_head.select(1, 0).mean(0))},
         {"others_by_head", numbers_of(by_head.slice(1, 1).mean(at::IntArrayRef{0, 1}))},
         {"histogram",
          {{"low", low}, {"high", high}, {"first", counted(first, low, high)}, {"others", counted(others, low, high)}}},
         {"cosine_input", first_input[static_cast<size_t>(layer)]},
         {"cosine_without_epe", rest[static_cast<size_t>(layer)]}});
  }
  return out;
}

// Experiment: attention to the first position under five interventions and their controls, applied to all layers
// together and to one layer at a time.

namespace {

constexpr int64_t kMapLength = 32;

// Attention to the first and second position under one condition, as means over heads and over later queries.
struct Attention {
  std::vector<std::vector<double>> first, second;  // [text][layer]
  std::vector<std::vector<double>>
      sink;                     // [text][layer], fraction of heads with a mean weight on the first key above 0.3
  std::vector<at::Tensor> map;  // [layer], mean over heads and texts
};

Attention attention_under(ModelAndTexts& subject, const sinks::Interventions& interventions, size_t texts,
                          bool with_map) {
  const at::NoGradGuard no_grad;
  const sinks::ScopedInterventions applied(subject.model, interventions);
  Attention out;
  ActivationHooks probes = applied.probes();
  probes.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
    const at::Tensor heads = weights[0];  // (heads, queries, keys)
    const auto layer = static_cast<size_t>(sinks::layer_of(name));
    out.first.back().push_back(heads.slice(1, 1).select(2, 0).mean().item<double>());
    out.second.back().push_back(heads.slice(1, 2).select(2, 1).mean().item<double>());
    out.sink.back().push_back(heads.select(2, 0).mean(1).gt(0.3).to(at::kDouble).mean().item<double>());
    if (!with_map) return;
    const int64_t shown = std::min(kMapLength, heads.size(1));
    const at::Tensor map = heads.mean(0).slice(0, 0, shown).slice(1, 0, shown).to(at::kCPU) / double(texts);
    if (out.map.size() <= layer) out.map.resize(layer + 1);
    out.map[layer] = out.map[layer].defined() ? out.map[layer] + map : map;
  });
  ForwardOptions options;
  options.activation_hooks = &probes;
  for (size_t n = 0; n < texts; ++n) {
    end_if_stopped("repro");
    out.first.emplace_back();
    out.second.emplace_back();
    out.sink.emplace_back();
    subject.model.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0).to(subject.model.device()), options);
  }
  return out;
}

Json to_json(const Attention& a) {
  Json out{{"first", a.first}, {"second", a.second}, {"sink", a.sink}};
  for (const at::Tensor& map : a.map) out["map"].push_back(rows_of(map));
  return out;
}

// Set columns of W_k, or the query bias b_Q, of a layer to zero.
void zero_key_columns(sinks::ScopedWeightEdits& edits, const LanguageModel& model, int64_t layer,
                      const std::vector<int64_t>& columns) {
  const at::Tensor& k = model.projections(layer).k;
  edits.write(k, k.detach().index_fill(1, at::tensor(columns, at::kLong).to(k.device()), 0));
}
void zero_query_bias(sinks::ScopedWeightEdits& edits, const LanguageModel& model, int64_t layer) {
  const at::Tensor& b = model.projections(layer).q_bias;
  edits.write(b, at::zeros_like(b));
}

template <typename Edit>
Attention with_weights(ModelAndTexts& subject, int64_t first, int64_t last, size_t texts, bool with_map,
                       const Edit& edit) {
  sinks::ScopedWeightEdits edits;
  for (int64_t layer = first; layer < last; ++layer) edit(edits, layer);
  return attention_under(subject, {}, texts, with_map);
}

// Returns the attention to the first position in a single layer, one value per text.
std::vector<double> in_layer(const Attention& a, int64_t layer) {
  std::vector<double> out;
  for (const auto& text : a.first) out.push_back(text[static_cast<size_t>(layer)]);
  return out;
}

}  // namespace

Json interventions_experiment(const ExperimentInputs& run) {
  const Json& s = run.settings;
  ModelAndTexts subject = model_and_texts(run, s.at("texts").get<int64_t>(), s.at("length").get<int64_t>());
  LanguageModel& model = subject.model;
  sinks::require_query_bias(model);
  const int64_t layers = model.config().num_layers, width = model.config().hidden_size;
  const size_t texts = subject.texts.size(), few = std::min(texts, s.at("few_texts").get<size_t>());
  const auto pairs = s.at("random_pairs").get<int64_t>();
  // The intervention edits the two coordinates at which |EPE_1| is largest. The control edits random pairs of
  // coordinates that are not among the largest.
  const at::Tensor order = sinks::effective_positions(model, sinks::EffectivePositions::literal)[0]
                               .abs()
                               .argsort(0, /*descending=*/true)
                               .to(at::kCPU);
  const std::vector<int64_t> massive{order[0].item<int64_t>(), order[1].item<int64_t>()};
  Json out{{"layers", layers}, {"texts", texts}, {"few_texts", few}, {"bos", subject.bos}, {"massive", massive}};
  const int64_t steps = 8 + pairs + 4 * layers;
  std::unique_ptr<Progress> progress;
  if (run.progress) progress = std::make_unique<Progress>("interventions", static_cast<uint64_t>(steps), "conditions");
  uint64_t done = 0;
  const auto tick = [&] {
    if (progress) progress->update(++done);
  };
  const auto record = [&](const char* name, const Attention& a) {
    out["conditions"][name] = to_json(a);
    tick();
  };
  using sinks::Interventions;
  const std::string away = "=epe[1] - epe[0]", there = "=epe[0] - epe[1]";
  record("none", attention_under(subject, {}, texts, true));
  record("1", with_weights(subject, 0, layers, texts, true,
                           [&](auto& edits, int64_t layer) { zero_query_bias(edits, model, layer); }));
  record("2", attention_under(subject, Interventions().add("layers.1.residual[0]" + away), texts, true));
  record("3", attention_under(subject,
                              Interventions().add("layers.1.residual[0]" + away).add("layers.1.residual[1]" + there),
                              texts, true));
  record("4", attention_under(subject, Interventions().set_zero("embedding.tokens[0]"), texts, true));
  record("5", with_weights(subject, 0, layers, texts, true,
                           [&](auto& edits, int64_t layer) { zero_key_columns(edits, model, layer, massive); }));
  record("2'", attention_under(subject, Interventions().replace("embedding.positions[0]=@[1]"), texts, true));
  record("3'", attention_under(subject, Interventions().swap_positions("embedding.positions=0,1"), texts, true));
  Random random(1);
  Json control = Json::array();
  for (int64_t n = 0; n < pairs; ++n) {
    // Excludes the ten largest coordinates of EPE_1 (the effective positional encoding of the first position), or the
    // largest quarter if this is fewer.
    const int64_t top = std::min<int64_t>(10, width / 4);
    std::vector<int64_t> pair;
    while (pair.size() < 2) {
      const int64_t coordinate =
          order[top + static_cast<int64_t>(random.below(static_cast<uint64_t>(width - top)))].item<int64_t>();
      if (pair.empty() || pair[0] != coordinate) pair.push_back(coordinate);
    }
    const Attention a = with_weights(subject, 0, layers, n == 0 ? texts : few, n == 0,
                                     [&](auto& edits, int64_t layer) { zero_key_columns(edits, model, layer, pair); });
    Json of_pair = to_json(a);
    of_pair["coordinates"] = pair;
    control.push_back(of_pair);
    tick();
  }
  out["control"] = control;
  // Changes one layer at a time and records the attention in this layer only.
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto one = [&](const char* name, const Attention& a) {
      out["single"][name].push_back(in_layer(a, layer));
      tick();
    };
    one("1", with_weights(subject, layer, layer + 1, few, false,
                          [&](auto& edits, int64_t l) { zero_query_bias(edits, model, l); }));
    one("5", with_weights(subject, layer, layer + 1, few, false,
                          [&](auto& edits, int64_t l) { zero_key_columns(edits, model, l, massive); }));
    if (layer == 0) continue;
    const std::string here = "layers." + std::to_string(layer) + ".residual";
    one("2", attention_under(subject, Interventions().add(here + "[0]" + away), few, false));
    one("3", attention_under(subject, Interventions().add(here + "[0]" + away).add(here + "[1]" + there), few, false));
  }
  if (progress) progress->finish();
  return out;
}

}  // namespace lazy::repro
