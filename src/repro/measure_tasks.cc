// The benchmarks of lazy eval, all whose files are there: the one place of src/repro that knows how tasks are run.
#include "core/log.h"
#include "eval/data/files.h"
#include "eval/run_tasks.h"
#include "repro/subject.h"

namespace lazy::repro {

Json measure_tasks(const Subject& subject, const Json& settings) {
  std::vector<eval::Task> tasks;
  for (const eval::Task& task : eval::builtin_tasks()) {
    if (eval::has_task_files(task, subject.data)) {
      tasks.push_back(task);
    } else {
      log::info("{}: no file of task {}: left out", subject.data.string(), task.name);
    }
  }
  Loaded loaded = load(subject);
  eval::RunOptions options;
  options.progress = subject.progress;
  options.score.cache = streaming_cache(settings);
  Json out = Json::object();
  for (const eval::TaskResult& result : eval::run_tasks(loaded.model, *loaded.tokenizer, tasks, subject.data, options)) {
    for (const eval::Metric& metric : result.metrics) {
      Json& found = out[result.name][metric.name] = {{"value", metric.value}, {"n", result.effective}};
      if (metric.standard_error) found["stderr"] = *metric.standard_error;
    }
  }
  return out;
}

}  // namespace lazy::repro
