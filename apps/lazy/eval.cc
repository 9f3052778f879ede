// `lazy eval MODEL_DIR`: held-out loss and benchmarks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "core/stop.h"
#include "core/text.h"
#include "eval/data/files.h"
#include "eval/evaluate.h"
#include "eval/result_files.h"
#include "eval/run_tasks.h"
#include "model/tokenizer_match.h"
#include "ops/load_cuda.h"

namespace {
namespace fs = std::filesystem;
using namespace lazy::eval;

struct EvalArguments {
  std::string model, data, corpus, split = "validation", text, output, dtype = "fp32", device = "auto", batch_size = "auto";
  std::vector<std::string> tasks;
  int64_t max_length = 0, num_fewshot = 0;
  uint64_t fewshot_seed = 1234;
  double limit = 0;
  bool bos = false, log_samples = false, json = false, list_tasks = false;
};

void list_tasks() {
  for (const Task& task : builtin_tasks()) {
    fmt::print("{:16}{}\n{:16}{} ({}){}\n", task.name, task.description, "", fmt::join(task.metrics, ", "),
               name(task.output_type), task.tags.empty() ? "" : fmt::format("; in group {}", fmt::join(task.tags, ", ")));
  }
}

bool has_files(const Task& task, const fs::path& data) {
  try {
    return !find_task_files(task, data, false).empty();
  } catch (const lazy::Error&) {
    return false;
  }
}

// What was asked for, spelled out: with no --tasks, whatever the given data serves. The benchmarks come back; whether the
// held-out loss is wanted too is in *heldout.
std::vector<Task> wanted_tasks(const EvalArguments& a, bool* heldout) {
  std::vector<std::string> names = a.tasks;
  *heldout = std::erase(names, "heldout") > 0 || (a.tasks.empty() && (!a.corpus.empty() || !a.text.empty()));
  if (*heldout && !a.corpus.empty() && !a.text.empty())
    lazy::fail("eval", "heldout: expected --corpus or --text, found both");
  if (*heldout && a.corpus.empty() && a.text.empty())
    lazy::fail("eval", "task heldout needs --corpus CORPUS_DIR or --text FILE");
  std::vector<Task> tasks = select_tasks(names);
  if (!tasks.empty() && a.data.empty()) lazy::fail("eval", "task {} needs --data DIR", tasks.front().name);
  if (a.tasks.empty() && !a.data.empty()) {
    for (const Task& task : builtin_tasks()) {
      if (has_files(task, a.data)) tasks.push_back(task);
    }
    if (tasks.empty()) find_task_files(builtin_tasks().front(), a.data, false);  // says what is not there
  }
  if (tasks.empty() && !*heldout)
    lazy::fail("eval", "nothing to evaluate on: expected --corpus, --text or --data, found none");
  return tasks;
}

at::Device resolve_device(const std::string& device) {
  if (device == "cpu") return at::kCPU;
  try {
    lazy::ops::load_cuda();
    return at::kCUDA;
  } catch (const std::exception& error) {
    if (device == "auto") return at::kCPU;
    lazy::fail("eval", "--device cuda: {}", error.what());
  }
}

// "auto" is 0.
int64_t batch_size_of(const std::string& text) {
  if (text == "auto") return 0;
  const bool digits =
      !text.empty() && text.size() < 6 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int64_t size = digits ? std::stoll(text) : 0;
  if (size < 1) lazy::fail("eval", "--batch-size: expected auto or 1 to 99999, found '{}'", text);
  return size;
}

std::string command_line(const EvalArguments& a) {
  std::string line = "lazy eval " + a.model;
  const auto add = [&](bool given, const std::string& words) {
    if (given) line += " " + words;
  };
  add(!a.corpus.empty(), "--corpus " + a.corpus);
  add(!a.text.empty(), "--text " + a.text);
  add(!a.data.empty(), "--data " + a.data);
  add(!a.tasks.empty(), fmt::format("--tasks {}", fmt::join(a.tasks, ",")));
  add(a.num_fewshot > 0, fmt::format("--num-fewshot {} --fewshot-seed {}", a.num_fewshot, a.fewshot_seed));
  add(a.bos, "--bos");
  add(a.max_length > 0, fmt::format("--max-length {}", a.max_length));
  add(a.limit > 0, fmt::format("--limit {}", a.limit));
  add(a.dtype != "fp32", "--dtype " + a.dtype);
  return line;
}

void evaluate(const EvalArguments& a) {
  if (a.list_tasks) return list_tasks();
  if (a.model.empty()) lazy::fail("eval", "expected a model folder, found none");
  bool heldout = false;
  const std::vector<Task> tasks = wanted_tasks(a, &heldout);
  const int64_t batch_size = batch_size_of(a.batch_size);
  if (!a.output.empty()) check_output(a.output);
  if (a.log_samples && a.output.empty()) lazy::fail("eval", "--log-samples needs --output");
  auto model = lazy::LanguageModel::load(a.model);
  const at::Device device = resolve_device(a.device);
  if (device.is_cuda()) model.to(device);
  if (a.dtype == "bf16") model.set_compute_dtype(at::kBFloat16);
  const auto tokenizer = lazy::load_tokenizer(a.model);
  lazy::check_tokenizer(model.config(), tokenizer->fingerprint(), tokenizer->vocab_size(), a.model);

  const int64_t max_length = a.max_length > 0 ? a.max_length : model.config().max_length;
  const std::optional<double> limit = a.limit > 0 ? std::optional(a.limit) : std::nullopt;
  std::vector<TaskResult> results;
  if (heldout) {
    const EvalOptions options{max_length, a.bos, batch_size, limit, true};
    results.push_back(!a.corpus.empty()
                          ? evaluate_corpus(model, a.corpus, a.split, options)
                          : evaluate_text(model, *tokenizer, lazy::to_valid_utf8(lazy::read_file(a.text)), a.text, options));
  }
  RunOptions options{{max_length, a.bos, a.num_fewshot, a.fewshot_seed, limit}, batch_size, a.log_samples, true};
  for (TaskResult& result : run_tasks(model, *tokenizer, tasks, a.data, options)) results.push_back(std::move(result));

  ResultInfo info;
  info.model_path = a.model;
  info.model_kind = model.config().kind();
  info.command = command_line(a);
  info.device = model.device().str();
  info.dtype = a.dtype;
  info.tokenizer_fingerprint = fmt::format("{:016x}", tokenizer->fingerprint());
  info.parameters = lazy::count_parameters(model.config()).total;
  info.batch_size = batch_size;
  info.max_length = max_length;
  info.bos = a.bos;
  info.limit = limit;
  info.fewshot_seed = a.fewshot_seed;
  const std::string json = to_json(results, info).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!a.output.empty()) write_results(a.output, json, results);
  fmt::print("{}", a.json ? json : to_table(results));
}

}  // namespace

LAZY_COMMAND(eval, "Held-out loss and benchmarks of a model", [](CLI::App& command) {
  auto a = std::make_shared<EvalArguments>();
  command.add_option("model", a->model, "Model folder");
  command.add_option("--tasks", a->tasks, "Tasks, groups, all, FILE.toml, heldout (default: what the given data serves)")
      ->delimiter(',');
  command.add_flag("--list-tasks", a->list_tasks, "Print the tasks and end");
  command.add_option("--data", a->data, "Folder with the benchmarks' files");
  command.add_option("--num-fewshot", a->num_fewshot, "Examples before each question")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_option("--fewshot-seed", a->fewshot_seed, "Seed of the examples")->capture_default_str();
  command.add_option("--limit", a->limit, "Documents of a task (corpus: sequences) at most; below 1 a share")
      ->check(CLI::PositiveNumber);
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare`, for heldout");
  command.add_option("--split", a->split, "The corpus' split")->capture_default_str();
  command.add_option("--text", a->text, "Text file, for heldout");
  command.add_option("--max-length", a->max_length, "Tokens a window (default: the model's training length)")
      ->check(CLI::Range(2, 1 << 24));
  command.add_flag("--bos", a->bos, "BOS before every text or sequence");
  command.add_option("--batch-size", a->batch_size, "Sequences a batch, or auto")->capture_default_str();
  command.add_option("--device", a->device, "Where to compute")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--dtype", a->dtype, "Computing precision")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command.add_option("--output", a->output, "Write the results here: a folder, or a file NAME.json");
  command.add_flag("--log-samples", a->log_samples, "Write a record of every document beside the results");
  command.add_flag("--json", a->json, "Print the results as JSON instead of a table");
  command.footer(R"(
Examples:
  lazy eval runs/lazy/model --tasks all --data data --output results --log-samples
  lazy eval runs/lazy/model --tasks piqa,arc_easy --data data --num-fewshot 5 --limit 100
  lazy eval runs/lazy/model --tasks my_task.toml --data data
  lazy eval runs/lazy/model --corpus corpus --output runs/lazy/eval.json
  lazy eval runs/lazy/model --text book.txt --max-length 512

Tasks follow lm-evaluation-harness 0.4.13; `lazy eval --list-tasks` names them, docs/evaluation.md has their files, the
results' schema, and how to add one. heldout: loss in nats per token, bits per byte, perplexity per token.)");
  command.callback([a] {
    lazy::install_stop_handlers();
    evaluate(*a);
  });
});
