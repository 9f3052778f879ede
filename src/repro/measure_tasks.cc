// The benchmarks of lazy eval, all whose files are there and whose choices the model can hold: the one place of
// src/repro that knows how tasks are run.
#include "core/log.h"
#include "eval/tasks/documents.h"
#include "eval/evaluate.h"
#include "repro/subject.h"

namespace lazy::repro {

Json measure_tasks(const Subject& subject, const Json& settings) {
  Loaded loaded = load(subject);
  eval::TaskOptions options;
  options.progress = subject.progress;
  options.score.cache = streaming_cache(settings);
  Json out = Json::object();
  for (const eval::Task& task : eval::builtin_tasks()) {
    if (!eval::has_task_files(task, subject.data)) {
      log::info("{}: no file of task {}: left out", subject.data.string(), task.name);
      continue;
    }
    try {
      const auto results = eval::evaluate_tasks(loaded.model, *loaded.tokenizer, {task}, subject.data, options);
      for (const eval::Metric& metric : results.at(0).metrics) {
        Json& found = out[task.name][metric.name] = {{"value", metric.value}, {"n", results[0].effective}};
        if (metric.standard_error) found["stderr"] = *metric.standard_error;
      }
    } catch (
        const eval::SequenceTooLong& error) {  // PIQA has a choice of 268 tokens, the models of --scale tiny take 256
      log::info("task {}: left out: {}", task.name, error.what());
    }
  }
  return out;
}

std::optional<std::pair<double, int>> mean_accuracy(const Json& tasks) {
  double sum = 0;
  int count = 0;
  for (const eval::Task& task : eval::builtin_tasks()) {
    if (task.headline.empty() || !tasks.contains(task.name) || !tasks.at(task.name).contains(task.headline)) continue;
    sum += tasks.at(task.name).at(task.headline).at("value").get<double>();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::pair{sum / count, count};
}

}  // namespace lazy::repro
