// Experiments of recipes. An experiment runs on a model folder that the user gives, on a model that the plan trained,
// or on a toy model that the experiment itself trains. It receives settings and returns numbers as JSON. A step of kind
// `experiment` runs one experiment.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "repro/plan.h"

namespace lazy::repro {

struct ExperimentInputs {
  Json settings;  // "study" names the experiment; "model", "text" and "corpus" are inputs
  std::string device = "cpu";
  bool progress = true;
};

// Throws an Error if settings' "study" is not a known experiment.
Json run_experiment(const ExperimentInputs& run);
// Approximate duration in seconds on two CPU cores with a model of 124M parameters.
double experiment_seconds(const Json& settings);

// gpt2.cc: causes of the attention sink in models with learned positions and query biases.
Json gamma_experiment(const ExperimentInputs& run);
Json delta_experiment(const ExperimentInputs& run);
Json positions_experiment(const ExperimentInputs& run);
Json interventions_experiment(const ExperimentInputs& run);
// attention.cc: attention to the first tokens.
Json mask_experiment(const ExperimentInputs& run);
Json repetition_experiment(const ExperimentInputs& run);
Json streaming_experiment(const ExperimentInputs& run);
// latency.cc: model_latency measures the time of a trained Lazy model with and without its second pass over the scores
// and with and without its sparsity. speed measures the time of a training step and of decoding, alternating between a
// trained model and its comparison models.
Json model_latency_experiment(const ExperimentInputs& run);
Json speed_experiment(const ExperimentInputs& run);
// vectors.cc: norms and variances by position.
Json vectors_experiment(const ExperimentInputs& run);
Json spread_experiment(const ExperimentInputs& run);
// benefits.cc: activation outliers, and the loss increase from low-bit quantization and from small KV caches.
Json outliers_experiment(const ExperimentInputs& run);
Json quantization_experiment(const ExperimentInputs& run);
Json cache_experiment(const ExperimentInputs& run);
// toy.cc, trigger.cc: a one-layer model trained on synthetic tokens, and an attention head trained on synthetic
// vectors.
Json toy_experiment(const ExperimentInputs& run);
Json trigger_experiment(const ExperimentInputs& run);

// Shared by experiments: the model on its device, and texts of equal length. The texts begin with BOS if the vocabulary
// has a BOS token.
struct ModelAndTexts {
  LanguageModel model;
  std::vector<std::vector<int64_t>> texts;
  bool bos = false;
};
ModelAndTexts model_and_texts(const ExperimentInputs& run, int64_t texts, int64_t length);
// Returns only the texts, without BOS.
std::vector<std::vector<int64_t>> texts_without_bos(const ExperimentInputs& run, int64_t texts, int64_t length);
LanguageModel experiment_model(const ExperimentInputs& run);
// Convert a tensor with one dimension (numbers_of) or two dimensions (rows_of) to lists of numbers.
std::vector<double> numbers_of(const at::Tensor& tensor);
std::vector<std::vector<double>> rows_of(const at::Tensor& tensor);

}  // namespace lazy::repro
