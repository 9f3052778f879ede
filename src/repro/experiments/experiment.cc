#include "repro/experiments/experiment.h"

#include <ATen/ATen.h>

#include <map>

#include "core/error.h"
#include "repro/measure.h"
#include "repro/runner.h"
#include "sinks/analysis.h"

namespace lazy::repro {
namespace {

struct KnownExperiment {
  Json (*run)(const ExperimentInputs&);
  double seconds;
};

const std::map<std::string, KnownExperiment>& known_experiments() {
  static const std::map<std::string, KnownExperiment> all{{"gamma", {gamma_experiment, 10}},
                                                          {"delta", {delta_experiment, 60}},
                                                          {"positions", {positions_experiment, 30}},
                                                          {"interventions", {interventions_experiment, 900}},
                                                          {"toy", {toy_experiment, 20}},
                                                          {"trigger", {trigger_experiment, 20}},
                                                          {"outliers", {outliers_experiment, 10}},
                                                          {"quantization", {quantization_experiment, 20}},
                                                          {"cache", {cache_experiment, 60}},
                                                          {"repetition", {repetition_experiment, 60}},
                                                          {"vectors", {vectors_experiment, 10}},
                                                          {"streaming", {streaming_experiment, 60}},
                                                          {"model_latency", {model_latency_experiment, 60}},
                                                          {"speed", {speed_experiment, 60}},
                                                          {"spread", {spread_experiment, 10}},
                                                          {"mask", {mask_experiment, 10}}};
  return all;
}

const KnownExperiment& known_experiment(const Json& settings) {
  const auto name = settings.at("study").get<std::string>();
  const auto found = known_experiments().find(name);
  if (found == known_experiments().end()) fail("repro", "unknown experiment '{}'", name);
  return found->second;
}

std::vector<std::vector<int64_t>> spread_texts(const ExperimentInputs& run, const Tokenizer& tokenizer, int64_t texts,
                                               int64_t length, std::optional<int32_t> bos) {
  std::vector<int32_t> ids;
  if (run.settings.contains("corpus")) {
    ids = sinks::corpus_source(tokenizer, run.settings.at("corpus").get<std::string>(), "validation").ids;
  } else {
    auto paths = run.settings.at("text").get<std::vector<std::string>>();
    if (paths.empty()) paths = demo_text();
    if (paths.empty())
      fail("repro", "no input text: pass --text FILE or FOLDER (the default text, Perl's manual, is not installed)");
    ids = text_tokens(paths, tokenizer);
  }
  auto out = sinks::spread_samples(ids, length, texts, bos);
  if (out.empty()) fail("repro", "--text: expected at least {} tokens, found {}", length, ids.size());
  return out;
}

}  // namespace

Json run_experiment(const ExperimentInputs& run) { return known_experiment(run.settings).run(run); }
double experiment_seconds(const Json& settings) { return known_experiment(settings).seconds; }

LanguageModel experiment_model(const ExperimentInputs& run) {
  LanguageModel model = LanguageModel::load(run.settings.at("model").get<std::string>());
  if (run.device == "cuda") model.to(at::Device(at::kCUDA, 0));
  return model;
}

std::vector<std::vector<int64_t>> texts_without_bos(const ExperimentInputs& run, int64_t texts, int64_t length) {
  return spread_texts(run, *load_tokenizer(run.settings.at("model").get<std::string>()), texts, length, std::nullopt);
}

ModelAndTexts model_and_texts(const ExperimentInputs& run, int64_t texts, int64_t length) {
  const auto tokenizer = load_tokenizer(run.settings.at("model").get<std::string>());
  const auto bos = tokenizer->bos_id();
  return {experiment_model(run), spread_texts(run, *tokenizer, texts, length, bos), bos.has_value()};
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor t = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  return {t.data_ptr<double>(), t.data_ptr<double>() + t.numel()};
}

std::vector<std::vector<double>> rows_of(const at::Tensor& tensor) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < tensor.size(0); ++i) rows.push_back(numbers_of(tensor[i]));
  return rows;
}

}  // namespace lazy::repro
