// The benchmarks of lazy eval, all whose files are there: the one place of src/repro that knows how tasks are run.
#include "core/error.h"
#include "core/log.h"
#include "eval/evaluate.h"
#include "repro/subject.h"

namespace lazy::repro {
namespace fs = std::filesystem;

Json measure_tasks(const Subject& subject) {
  Loaded loaded = load(subject);
  eval::EvalOptions options;
  options.progress = subject.progress;
  Json out = Json::object();
  for (const eval::Task& task : eval::tasks()) {
    const bool there = std::any_of(task.files.begin(), task.files.end(), [&](const std::string& file) { return fs::exists(subject.data / file); });
    if (!there) {
      log::info("{}: no file of task {}: left out", subject.data.string(), task.name);
      continue;
    }
    const eval::TaskResult result = eval::evaluate_task(loaded.model, *loaded.tokenizer, task, subject.data, options);
    for (const eval::Metric& metric : result.metrics) out[task.name][metric.name] = {{"value", metric.value}, {"n", result.effective}};
  }
  return out;
}

}  // namespace lazy::repro
