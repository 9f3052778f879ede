#include "eval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "common_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/corpus/source.h"
#include "data/shards/corpus.h"
#include "eval/compare/compare.h"
#include "eval/evaluate.h"
#include "eval/tasks/documents.h"
#include "model/config.h"
#include "model/device.h"

namespace lazy::cli {
namespace fs = std::filesystem;
using namespace lazy::eval;

namespace {

// Returns the benchmarks that --tasks selects, or by default all benchmarks whose files are in --data. *heldout is set
// to whether the held-out loss is evaluated too.
std::vector<Task> selected_tasks(const EvalArguments& a, bool* heldout) {
  std::vector<std::string> names = a.tasks;
  *heldout = std::erase(names, "heldout") > 0 || (a.tasks.empty() && (!a.corpus.empty() || !a.text.empty()));
  if (*heldout && !a.corpus.empty() && !a.text.empty())
    fail("eval", "heldout: expected --corpus or --text, found both");
  if (*heldout && a.corpus.empty() && a.text.empty())
    fail("eval", "task heldout needs --corpus CORPUS_DIR or --text FILE");
  std::vector<Task> tasks = select_tasks(names);
  if (!tasks.empty() && a.data.empty()) fail("eval", "task {} needs --data DIR", tasks.front().name);
  // Report missing files before the model is loaded.
  for (const Task& task : tasks) {
    find_task_files(task, a.data, false);
    if (a.num_fewshot > 0 && task.output_type != OutputType::loglikelihood_rolling &&
        task.data.fewshot_split != task.data.split)
      find_task_files(task, a.data, true);
  }
  if (*heldout && !a.corpus.empty()) open_shards(a.corpus, a.split);
  if (*heldout && !a.text.empty() && !fs::exists(a.text)) fail("eval", "--text {}: the file does not exist", a.text);
  if (a.tasks.empty() && !a.data.empty()) {
    for (const Task& task : builtin_tasks()) {
      if (has_task_files(task, a.data)) tasks.push_back(task);
    }
    // no task has files: this call throws an Error that lists the expected file names
    if (tasks.empty()) find_task_files(builtin_tasks().front(), a.data, false);
  }
  if (tasks.empty() && !*heldout)
    fail("eval", "nothing to evaluate on: expected --corpus, --text or --data, found none");
  return tasks;
}

struct Evaluation {
  std::vector<TaskResult> results;
  nlohmann::ordered_json json;
};

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Returns whether transformers puts BOS before a text. In this case lm-evaluation-harness also puts BOS before a text,
// unless its option add_bos_token is given.
bool adds_bos(const Tokenizer& tokenizer) {
  const auto& prefix = tokenizer.tokens().prefix;
  return !prefix.empty() && prefix.front() == tokenizer.bos_id();
}

// Returns the name with which --tasks selects the task.
std::string argument_of(const Task& task) {
  const auto same = [&](const Task& known) { return known.name == task.name && known.origin == task.origin; };
  return std::ranges::any_of(builtin_tasks(), same) ? task.name : task.origin;
}

// Collects the results of one model in `evaluation`. If `output` is given, files are written whenever a task ends.
class Collector {
 public:
  Collector(const std::string& output, const std::vector<Task>& tasks, bool heldout, Evaluation& evaluation)
      : evaluation_(evaluation) {
    if (!output.empty()) files_.emplace(output);
    if (heldout) unfinished_.push_back("heldout");
    for (const Task& task : tasks) unfinished_.push_back(argument_of(task));
  }
  ResultInfo info;  // run information for to_json(); its lists cover only the finished tasks

  void add(const TaskResult& result) {
    unfinished_.erase(unfinished_.begin());  // tasks are finished in the order of this list
    evaluation_.results.push_back(result);
    info.unfinished = unfinished_;
    evaluation_.json = to_json(evaluation_.results, info);
    if (!files_) return;
    files_->write_samples(result);
    const std::string json = dumped(evaluation_.json);
    if (!unfinished_.empty()) return files_->write_partial(json);
    files_->write(json);
    log::info("eval: the results are in {}", files_->path().string());
  }
  // Returns the error of a stopped evaluation. The message says where the results of the finished tasks are and how to
  // evaluate the other tasks.
  Interrupted interrupted(const Interrupted& error) const {
    if (evaluation_.results.empty()) return {fmt::format("{}; no task was finished", error.what()), stop_signal()};
    std::string finished;
    if (files_) finished = fmt::format("; the finished tasks are in {}", files_->partial_path().string());
    return {fmt::format("{}{}; to evaluate the other tasks, use --tasks {}", error.what(), finished,
                        fmt::join(unfinished_, ",")),
            stop_signal()};
  }

 private:
  std::optional<ResultFiles> files_;
  std::vector<std::string> unfinished_;
  Evaluation& evaluation_;
};

// Evaluates one model and adds its results to `evaluation`. If the evaluation is stopped, `evaluation` has the results
// of the finished tasks. output: file or folder for the results, or "".
void evaluate(const EvalArguments& a, const std::string& model_path, const std::string& output,
              const EvalMachine& machine, Evaluation& evaluation) {
  bool heldout = false;
  const std::vector<Task> tasks = selected_tasks(a, &heldout);
  Collector collector(machine.first ? output : "", tasks, heldout, evaluation);
  ScoreOptions score = machine.score;
  score.cache = a.model_options.streaming();
  auto model = open_model(model_path, a.model_options);
  move_to_machine(model, machine, a.dtype);
  const auto tokenizer = load_tokenizer(model_path);
  check_tokenizer(model.config(), tokenizer->fingerprint(), model_path);

  const int64_t max_length = a.max_length > 0 ? a.max_length : model.config().max_length;
  const std::optional<double> limit = a.limit > 0 ? std::optional(a.limit) : std::nullopt;
  const bool bos = a.bos || (!a.no_bos && adds_bos(*tokenizer));  // whether texts of benchmarks begin with BOS
  ResultInfo& info = collector.info;
  info.model_path = model_path;
  info.model_kind = model.config().kind();
  info.command = a.command;
  info.device = device_name(model);
  info.dtype = a.dtype;
  info.tokenizer_fingerprint = fmt::format("{:016x}", tokenizer->fingerprint());
  info.parameters = count_parameters(model.config()).total;
  info.batch_size = score.batch_size;
  info.max_length = max_length;
  info.bos = (tasks.empty() ? a.bos : bos) || a.bos_every_window;
  info.bos_every_window = a.bos_every_window;
  info.limit = limit;
  info.fewshot_seed = a.fewshot_seed;
  const bool rolling =
      std::ranges::any_of(tasks, [](const Task& t) { return t.output_type == OutputType::loglikelihood_rolling; });
  if (machine.first && !score.cache) warn_beyond_training("eval", model_path, model.config(), max_length);
  if (!a.no_bos && !a.bos_every_window && ((heldout && !(a.bos && !a.corpus.empty())) || rolling))
    hint_at_bos(model.config(), model_path);
  try {
    if (heldout) {
      const HeldoutOptions options{max_length, a.bos, limit, score, true, a.bos_every_window};
      collector.add(!a.corpus.empty() ? evaluate_corpus(model, a.corpus, a.split, options)
                                      : evaluate_text(model, *tokenizer, read_text(a.text), a.text, options));
    }
    TaskOptions options{{max_length, bos, a.num_fewshot, a.fewshot_seed, limit, a.bos_every_window},
                        score,
                        a.log_samples || a.models.size() > 1,
                        true,
                        [&](const TaskResult& result) { collector.add(result); }};
    evaluate_tasks(model, *tokenizer, tasks, a.data, options);
  } catch (const Interrupted& error) {
    throw collector.interrupted(error);
  }
}

// Evaluates several models on the same documents: prints the results of each model, then comparisons with the first
// one.
void evaluate_several(const EvalArguments& a, const EvalMachine& machine) {
  if (fs::path(a.output).extension() == ".json")
    fail("eval", "--output {}: expected a folder for several models' results, found a file's name", a.output);
  nlohmann::ordered_json all;
  std::vector<ResultFolder> folders;
  for (const std::string& model : a.models) {
    const fs::path output = a.output.empty() ? fs::path() : fs::path(a.output) / sanitized_model_name(model);
    Evaluation evaluation;
    const auto show = [&] {
      if (!a.json && machine.first && !evaluation.results.empty())
        fmt::print("{}\n{}\n", model, to_table(evaluation.results));
      all["models"][model] = evaluation.json;
    };
    try {
      evaluate(a, model, output.string(), machine, evaluation);
    } catch (const Interrupted&) {
      show();
      if (a.json && machine.first) fmt::print("{}", dumped(all));
      throw;
    }
    show();
    folders.push_back(as_result_folder(model, evaluation.results));
  }
  if (!machine.first) return;
  const CompareOptions options;
  std::vector<ModelComparison> comparisons;
  if (!folders.front().tasks.empty())
    // result folders have samples of benchmarks only, so the held-out loss cannot be compared by document
    comparisons = compare_all(folders, options);
  all["comparison"] = to_json(comparisons, options);
  fmt::print("{}", a.json ? dumped(all) : comparisons.empty() ? "" : to_table(comparisons, options));
}

}  // namespace

int64_t parse_batch_size(const std::string& text) {
  if (text == "auto") return 0;
  const bool digits = !text.empty() && text.size() < 6 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int64_t size = digits ? std::stoll(text) : 0;
  if (size < 1) fail("eval", "--batch-size: expected auto or 1 to 99999, found '{}'", text);
  return size;
}

void move_to_machine(LanguageModel& model, const EvalMachine& machine, const std::string& dtype) {
  set_placement(model, machine.device, dtype);
}

void hint_at_bos(const ModelConfig& config, const std::string& path) {
  if (config.family != ModelFamily::gemma2 && config.family != ModelFamily::gemma3) return;
  log::warn(
      "eval: {}: windows begin without BOS, and predictions of Gemma models are wrong without it; --bos-every-window "
      "adds it to each window",
      path);
}

void list_tasks() {
  for (const Task& task : builtin_tasks()) {
    fmt::print("{:16}{}\n{:16}{} ({}){}\n", task.name, task.description, "", fmt::join(task.metrics, ", "),
               name(task.output_type),
               task.tags.empty() ? "" : fmt::format("; in group {}", fmt::join(task.tags, ", ")));
  }
}

void compare_folders(const EvalArguments& a) {
  if (a.models.size() < 2)
    fail("eval", "--compare: expected two or more folders of results, found {}", a.models.size());
  std::vector<ResultFolder> folders;
  for (const std::string& folder : a.models) folders.push_back(read_result_folder(folder));
  const CompareOptions options;
  const auto comparisons = compare_all(folders, options);
  fmt::print("{}", a.json ? dumped(to_json(comparisons, options)) : to_table(comparisons, options));
}

void evaluate_models(const EvalArguments& a, const EvalMachine& machine) {
  if (a.models.size() > 1) return evaluate_several(a, machine);
  Evaluation evaluation;
  const auto show = [&] {
    if (machine.first && !evaluation.results.empty())
      fmt::print("{}", a.json ? dumped(evaluation.json) : to_table(evaluation.results));
  };
  try {
    evaluate(a, a.models.front(), a.output, machine, evaluation);
  } catch (const Interrupted&) {
    show();
    throw;
  }
  show();
}

}  // namespace lazy::cli
