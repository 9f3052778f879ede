// The measurements of the steps of a recipe. A measurement reads a model folder and text and returns numbers as JSON. A
// list has one number per text, so that models can be compared text by text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "eval/score.h"
#include "measure/texts.h"
#include "model/language_model.h"
#include "model/streaming_cache.h"
#include "repro/plan.h"

namespace lazy::repro {

struct MeasureInputs {
  std::filesystem::path model, corpus, data, domain;
  std::string device = "cpu";
  bool progress = true;
  SequenceOptions sequences = {};  // held-out text is cut as in training; the length is the model's context length
};

// Returns {"loss": [...]} in nats per token on held-out sequences of the corpus, which are built like the training
// sequences. If settings["cache"] names a streaming cache, this cache is used.
Json measure_heldout(const MeasureInputs& inputs, const Json& settings);
// Returns {"sink_ratio": [...], "density": [...], "released_mass": [...], "alive_fraction": [...], "sink_1": [...],
// "excess": [...], "by_layer"} on held-out samples. sink_1: fraction of heads with Sink_1^0.3. excess: the sink ratio
// minus the sink ratio of uniform attention rows (sinks/uniform.h); it is omitted for models with sliding windows or
// segments.
Json measure_sinks(const MeasureInputs& inputs, const Json& settings);
// Returns {task: {metric: {"value", "stderr"}}} for every task of lazy eval whose file is in the data folder, or only
// for the task that settings["task"] names. settings["cache"] may name a streaming cache. With "bos_every_window",
// "-bos" is appended to the name of a task.
Json measure_tasks(const MeasureInputs& inputs, const Json& settings);
// Returns, for a result of measure_tasks, the mean of the tasks' headline accuracies (eval::Task::headline) and the
// number of tasks.
std::optional<std::pair<double, int>> mean_accuracy(const Json& tasks);
// Returns {text: {length: [...]}, "collapse": {length: {"cosine": [...], "effective_rank": [...]}}} for the lengths in
// settings["lengths"]. The text is cut into "blocks" stretches, each as long as the longest length, or "stretch" tokens
// if this is set. Held-out text has the same separators as in training. A list has at most kLengthGroups numbers.
Json measure_lengths(const MeasureInputs& inputs, const Json& settings);
// Returns {"tau": [layer][head], "distance_bias": [layer][head][distance], "alibi_slopes": [layer][head]}.
Json measure_learned(const MeasureInputs& inputs);
// Returns {"loss": [...], "sink_ratio": [...]} on a folder of text.
Json measure_domain(const MeasureInputs& inputs, const Json& settings);
// Returns {set: {"samples", "files"}} for the benchmark files in a data folder.
Json count_datasets(const std::filesystem::path& data);

struct LoadedModel {
  LanguageModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};
LoadedModel load(const MeasureInputs& inputs);

// Returns the streaming cache that a step's settings name, or nullopt for a full KV cache.
std::optional<StreamingCache> streaming_cache(const Json& settings);

}  // namespace lazy::repro
