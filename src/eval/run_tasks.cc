#include "eval/run_tasks.h"

#include <fmt/format.h>

#include <future>

#include "core/clock.h"
#include "core/checksum.h"
#include "eval/samples.h"

namespace lazy::eval {
namespace {

// lm-evaluation-harness's names of what a task was, as far as they mean something here.
Json config_of(const Task& task, int64_t num_fewshot, const std::filesystem::path& data) {
  Json config = {{"task", task.name},     {"description", task.prefix},    {"dataset_path", task.data.hub},
                 {"data", data.string()}, {"test_split", task.data.split}, {"fewshot_split", task.data.fewshot_split}};
  if (task.output_type == OutputType::loglikelihood_rolling) {
    config["doc_to_target"] = task.text.source();
  } else if (task.output_type == OutputType::loglikelihood) {
    config["doc_to_text"] = task.context.source();
    config["doc_to_target"] = task.continuation.source();
  } else {
    config["doc_to_text"] = task.contexts.empty() ? Json(task.context.source()) : task.contexts.source();
    config["doc_to_target"] = task.label.source();
    config["doc_to_choice"] = task.contexts.empty() ? task.choices.source() : Json(task.continuation.source());
  }
  config["target_delimiter"] = task.target_delimiter;
  config["fewshot_delimiter"] = task.fewshot_delimiter;
  config["num_fewshot"] = num_fewshot;
  config["metric_list"] = Json::array();
  for (const std::string& metric : task.metrics) config["metric_list"].push_back({{"metric", metric}});
  config["output_type"] = name(task.output_type);
  config["repeats"] = 1;
  config["metadata"] = {{"version", task.version}, {"file", task.origin}, {"about", task.description}};
  return config;
}

// One task under way: what its documents gave so far.
struct Running {
  std::vector<DocumentMeasure> documents;
  std::string samples, hashes;
  double seconds = 0;
};

void take(const Task& task, const Chunk& chunk, const std::vector<Score>& scores, bool log_samples, Running& running) {
  size_t begin = 0;
  for (size_t i = 0; i < chunk.questions.size(); ++i) {
    const Question& question = chunk.questions[i];
    std::vector<Score> own(scores.begin() + static_cast<int64_t>(begin),
                           scores.begin() + static_cast<int64_t>(chunk.ends[i]));
    begin = chunk.ends[i];
    if (task.output_type == OutputType::loglikelihood_rolling) {  // a text's windows are one answer
      Score sum;
      for (const Score& s : own) sum.log_likelihood += s.log_likelihood;
      own = {sum};
    }
    std::vector<double> values = document_metrics(task, question, own);
    if (log_samples) {
      const Json record =
          sample_record(task, chunk.first + static_cast<int64_t>(i), chunk.rows[i], question, own, values);
      running.samples += record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
      for (const char* hash : {"doc_hash", "prompt_hash", "target_hash"})
        running.hashes += record[hash].get<std::string>();
    }
    running.documents.push_back({std::move(values), question.words, question.bytes,
                                 static_cast<int64_t>(question.choices.size()), question.label});
  }
}

TaskResult finish(const Task& task, Running running, int64_t original, int64_t num_fewshot,
                  const std::filesystem::path& data) {
  TaskResult result;
  result.name = task.name;
  result.version = task.version;
  result.metrics = aggregate(task, running.documents);
  result.original = original;
  result.effective = static_cast<int64_t>(running.documents.size());
  result.num_fewshot = task.output_type == OutputType::loglikelihood_rolling ? 0 : num_fewshot;
  result.config = config_of(task, result.num_fewshot, data);
  result.seconds = running.seconds;
  result.chance = chance_of(task, running.documents);
  result.headline = task.headline;
  if (!running.samples.empty()) result.task_hash = sha256_hex(running.hashes);
  result.samples = std::move(running.samples);
  return result;
}

}  // namespace

std::vector<TaskResult> run_tasks(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Task>& tasks,
                                  const std::filesystem::path& data, RunOptions options) {
  if (options.prepare.max_length <= 0) options.prepare.max_length = model.config().max_length;
  std::vector<std::future<TaskResult>> finishing;
  Preparation preparation(tasks, data, tokenizer, options.prepare);
  Running running;
  std::future<void> taking;  // the records of the chunk before, while the model computes
  Chunk chunk;
  for (auto begin = Clock::now(); preparation.next(chunk);) {
    const Task& task = tasks[chunk.task];
    const int64_t documents = chunk.first + static_cast<int64_t>(chunk.questions.size());
    ScoreOptions how = options.score;
    how.title = !options.progress                ? ""
                : chunk.first == 0 && chunk.last ? task.name
                                                 : fmt::format("{} {} of {}", task.name, documents, chunk.planned);
    auto scores = chunk.windows.empty() ? score(model, chunk.requests, options.prepare.max_length, how)
                                        : score(model, chunk.windows, how);
    if (taking.valid()) taking.get();
    running.seconds += seconds_since(begin);
    begin = Clock::now();
    if (!chunk.last) {
      taking = std::async(std::launch::async, [&, chunk = std::move(chunk), scores = std::move(scores)] {
        take(task, chunk, scores, options.log_samples, running);
      });
      continue;
    }
    finishing.push_back(std::async(std::launch::async, [&, chunk = std::move(chunk), scores = std::move(scores),
                                                        running = std::move(running)]() mutable {
      take(task, chunk, scores, options.log_samples, running);
      return finish(task, std::move(running), chunk.original, options.prepare.num_fewshot, data);
    }));
    running = Running();
  }
  std::vector<TaskResult> results;
  for (auto& result : finishing) results.push_back(result.get());
  return results;
}

}  // namespace lazy::eval
