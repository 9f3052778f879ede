// Experiments of recipes: on a model folder that the user gives, on a model that the plan trained, or on a toy model
// that the experiment trains. Settings in, numbers out as JSON; a step of kind `experiment` runs one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "repro/plan.h"

namespace lazy::repro {

struct ExperimentInputs {
  Json settings;  // "study": the experiment's name; "model", "text" or "corpus": its inputs
  std::string device = "cpu";
  bool progress = true;
};

// Error for an unknown name.
Json run_experiment(const ExperimentInputs& run);
// Approximate duration in seconds on two CPU cores with a model of 124M parameters.
double experiment_seconds(const Json& settings);

// gpt2.cc: what makes the sink in models with learned positions and query biases.
Json gamma_experiment(const ExperimentInputs& run);
Json delta_experiment(const ExperimentInputs& run);
Json positions_experiment(const ExperimentInputs& run);
Json interventions_experiment(const ExperimentInputs& run);
// attention.cc: attention to the first tokens.
Json mask_experiment(const ExperimentInputs& run);
Json repetition_experiment(const ExperimentInputs& run);
Json streaming_experiment(const ExperimentInputs& run);
// latency.cc: a trained Lazy model's time, with and without its second pass and its sparsity; the time of a training
// step and of decoding, a trained model and those beside it in turn.
Json model_latency_experiment(const ExperimentInputs& run);
Json speed_experiment(const ExperimentInputs& run);
// vectors.cc: norms and variances by position.
Json vectors_experiment(const ExperimentInputs& run);
Json spread_experiment(const ExperimentInputs& run);
// benefits.cc: outliers, and the loss that few bits and small caches add.
Json outliers_experiment(const ExperimentInputs& run);
Json quantization_experiment(const ExperimentInputs& run);
Json cache_experiment(const ExperimentInputs& run);
// toy.cc, trigger.cc: a one-layer model trained on synthetic tokens; a head trained on synthetic vectors.
Json toy_experiment(const ExperimentInputs& run);
Json trigger_experiment(const ExperimentInputs& run);

// Shared by experiments: the model on its device, and texts of equal length that begin with BOS if the vocabulary has
// one.
struct ModelAndTexts {
  LanguageModel model;
  std::vector<std::vector<int64_t>> texts;
  bool bos = false;
};
ModelAndTexts model_and_texts(const ExperimentInputs& run, int64_t texts, int64_t length);
// The texts alone, without BOS.
std::vector<std::vector<int64_t>> texts_without_bos(const ExperimentInputs& run, int64_t texts, int64_t length);
LanguageModel experiment_model(const ExperimentInputs& run);
// The numbers of a tensor of one or two dimensions.
std::vector<double> numbers_of(const at::Tensor& tensor);
std::vector<std::vector<double>> rows_of(const at::Tensor& tensor);

}  // namespace lazy::repro
