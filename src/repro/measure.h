// The measurements that steps ask for, each by the library that owns it: a model folder and text in, numbers out as
// JSON. Lists hold one number for each text, so that models are compared text by text.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "repro/step.h"

namespace lazy::repro {

struct Subject {
  std::filesystem::path model, corpus, data, domain;
  std::string device = "cpu";
  bool progress = true;
};

// {"loss": [...]}: held-out sequences of the corpus, nats a token; through settings' "cache", if it names one.
Json measure_heldout(const Subject& subject, const Json& settings);
// {"sink_ratio": [...], "density": [...], "released_mass": [...], "alive_fraction": [...]}: held-out samples;
// "by_layer" too.
Json measure_sinks(const Subject& subject, const Json& settings);
// {task: {metric: {"value", "stderr"}}} of every task of lazy eval whose file is below the data folder; the same.
Json measure_tasks(const Subject& subject, const Json& settings);
// Of what that found: the mean of the accuracies that the tasks are known by (eval::Task::headline), and of how many.
std::optional<std::pair<double, int>> mean_accuracy(const Json& tasks);
// {text: {length: [...]}, "collapse": {length: {"cosine": [...], "effective_rank": [...]}}}.
Json measure_lengths(const Subject& subject, const Json& settings);
// {"tau": [layer][head], "distance_bias": [layer][head][distance], "alibi_slopes": [layer][head]}.
Json measure_learned(const Subject& subject);
// {"loss": [...], "sink_ratio": [...]} of a folder of text.
Json measure_domain(const Subject& subject, const Json& settings);
// {set: {"samples", "files"}} of the benchmark files below a data folder.
Json count_datasets(const std::filesystem::path& data);

}  // namespace lazy::repro
