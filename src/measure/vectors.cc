// Experiments that measure norms and variances of queries, keys, values and hidden states by position.
#include <ATen/ATen.h>

#include <map>

#include "core/stop.h"
#include "core/text.h"
#include "measure/experiment.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "sinks/probe_measures.h"

namespace lazy::measure {

// Experiment: measures the norm and the variance of queries, keys, values and the residual stream at each token, as
// defined for the tables of the paper. The texts are the sentence of the paper and a text that repeats one token.

namespace {

constexpr int64_t kTokens = 15;
constexpr const char* kSentence = "Once upon a time, in a land far, far away, there lived a";

// Probe points of the measured activations: queries and keys before and after their norm and RoPE, values, and hidden
// states.
constexpr const char* kPlaces[] = {"attention.q.projected", "attention.k.projected", "attention.v", "attention.q",
                                   "attention.k",           "attention.input",       "residual"};

Json statistics_of(LanguageModel& model, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_grad;
  std::vector<sinks::VectorStatistics> statistics;
  for (const char* place : kPlaces) statistics.emplace_back(place);
  ActivationHooks probes;
  for (auto& s : statistics) s.attach(probes);
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(at::tensor(ids, at::kLong).unsqueeze(0).to(model.device()), options);
  Json out = Json::object();
  for (const auto& s : statistics) {
    const auto result = s.result();
    for (const auto& [name, values] : {std::pair{"norm", result.norm}, {"variance", result.variance}}) {
      Json layers = Json::array();
      for (int64_t layer = 0; layer < values.size(0); ++layer) layers.push_back(rows_of(values[layer]));
      out[s.place()][name] = layers;  // [layer][head][position]
    }
  }
  return out;
}

}  // namespace

Json vectors_experiment(const ExperimentInputs& run) {
  const auto tokenizer = load_tokenizer(run.settings.at("model").get<std::string>());
  LanguageModel model = experiment_model(run);
  const auto encoded = tokenizer->encode(kSentence), word = tokenizer->encode(" sink");
  std::vector<int64_t> natural(encoded.begin(),
                               encoded.begin() + std::min<int64_t>(kTokens, static_cast<int64_t>(encoded.size())));
  const std::vector<int64_t> repeated(natural.size(), word.back());
  std::vector<std::string> tokens;
  for (const int64_t id : natural) tokens.push_back(to_valid_utf8(tokenizer->piece(static_cast<int32_t>(id))));
  const ModelConfig& c = model.config();
  return {{"family", name(c.family)},
          {"layers", c.num_layers},
          {"heads", c.attention.num_heads},
          {"kv_heads", c.attention.num_kv_heads},
          {"ids", natural},
          {"tokens", tokens},
          {"repeated_id", word.back()},
          {"natural", statistics_of(model, natural)},
          {"repeated", statistics_of(model, repeated)}};
}

// Experiment: measures the variance of hidden states and values by position and layer on natural text, and the
// attention to the first position.

Json spread_experiment(const ExperimentInputs& run) {
  ModelAndTexts subject =
      model_and_texts(run, run.settings.at("texts").get<int64_t>(), run.settings.at("length").get<int64_t>());
  const at::NoGradGuard no_grad;
  Json out{{"layers", subject.model.config().num_layers},
           {"window", subject.model.config().attention.window},
           {"texts", subject.texts.size()}};
  std::map<std::string, at::Tensor> by_position;  // variance, shape (layers, length): mean over heads and texts
  for (const auto& text : subject.texts) {
    end_if_stopped("measure");
    sinks::VectorStatistics residual("residual"), values("attention.v");
    ActivationHooks probes;
    residual.attach(probes);
    values.attach(probes);
    ForwardOptions options;
    options.activation_hooks = &probes;
    options.return_stats = true;
    const auto stats =
        subject.model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(subject.model.device()), options).stats;
    for (const auto* statistics : {&residual, &values}) {
      const at::Tensor variance = statistics->result().variance;  // (layers, heads, length)
      const std::string name = statistics == &residual ? "residual" : "values";
      // One number per text: the variance at the first position divided by the mean over the remaining positions,
      // minus 1, averaged over layers and heads.
      out[name].push_back((variance.select(2, 0) / variance.slice(2, 1).mean(2) - 1).mean().item<double>());
      at::Tensor& sum = by_position[name];
      const at::Tensor more = variance.mean(1) / double(subject.texts.size());
      sum = sum.defined() ? sum + more : more;
    }
    double sink = 0;
    for (const at::Tensor& layer : stats) sink += layer[0].slice(2, 1).mean().item<double>() / double(stats.size());
    out["sink"].push_back(sink);
  }
  for (const auto& [name, variance] : by_position) out["by_position"][name] = rows_of(variance);  // [layer][position]
  return out;
}

}  // namespace lazy::measure
