// Experiments on one model folder. An experiment receives settings and returns numbers as JSON. kinds.h lists the
// experiments with their settings.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "model/streaming_cache.h"

namespace lazy::measure {

using Json = nlohmann::ordered_json;

struct ExperimentInputs {
  // The settings of the experiment (see kinds.h) and: "study", the name of the experiment; "model", "text", "corpus",
  // "data" and "baselines" (name -> model folder), its inputs.
  Json settings;
  std::string device = "cpu";
  bool progress = true;
};

// Experiments in attention.cc: attention to the first tokens.
Json mask_experiment(const ExperimentInputs& run);
Json repetition_experiment(const ExperimentInputs& run);
Json streaming_experiment(const ExperimentInputs& run);
// Experiments in latency.cc. model_latency measures the time of a trained Lazy model with and without its second pass
// over the scores, and with and without its sparsity. speed measures the time of a training step and of decoding,
// alternating between a trained model and its comparison models.
Json model_latency_experiment(const ExperimentInputs& run);
Json speed_experiment(const ExperimentInputs& run);
// Experiments in vectors.cc: norms and variances of activations by position.
Json vectors_experiment(const ExperimentInputs& run);
Json spread_experiment(const ExperimentInputs& run);
// Experiments in benefits.cc: activation outliers, and the loss increase from low-bit quantization and small KV caches.
Json outliers_experiment(const ExperimentInputs& run);
Json quantization_experiment(const ExperimentInputs& run);
Json cache_experiment(const ExperimentInputs& run);
// Experiment in bias_range.cc: loss if the entries of the distance bias beyond a distance are set to zero.
Json bias_range_experiment(const ExperimentInputs& run);
// Inputs that several experiments use: the model on its device, and texts of equal length. The texts begin with BOS if
// the vocabulary has a BOS token.
struct ModelAndTexts {
  LanguageModel model;
  std::vector<std::vector<int64_t>> texts;
  bool bos = false;
};
ModelAndTexts model_and_texts(const ExperimentInputs& run, int64_t texts, int64_t length);
// Returns only the texts, without BOS.
std::vector<std::vector<int64_t>> texts_without_bos(const ExperimentInputs& run, int64_t texts, int64_t length);
LanguageModel experiment_model(const ExperimentInputs& run);
// Returns the mean negative log-likelihood of the tokens of each text, starting at token `first`; one number per text.
// `batch` is the number of texts per forward pass, see eval::ScoreOptions.
std::vector<double> text_losses(LanguageModel& model, const std::vector<std::vector<int64_t>>& texts, int64_t first,
                                int64_t batch, const std::optional<StreamingCache>& cache = std::nullopt);
// Convert a tensor with one dimension (numbers_of) or two dimensions (rows_of) to lists of numbers.
std::vector<double> numbers_of(const at::Tensor& tensor);
std::vector<std::vector<double>> rows_of(const at::Tensor& tensor);

}  // namespace lazy::measure
