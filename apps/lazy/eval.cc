// `lazy eval MODEL_DIR`: held-out loss and benchmarks, optionally over several context lengths.
#include <chrono>
#include <memory>
#include <string>

#include "command.h"
#include "common_options.h"
#include "core/error.h"
#include "core/stop.h"
#include "distributed/launch.h"
#include "eval.h"
#include "model/device.h"
#include "model_path.h"

namespace {

// Timeout of collective operations between ranks. Ranks score different parts of a task, so the timeout must exceed the
// time that a fast rank waits for a slow one.
constexpr std::chrono::minutes kTimeout(30);

void run(lazy::cli::EvalArguments a, const lazy::cli::LengthArguments& lengths) {
  if (a.list_tasks) return lazy::cli::list_tasks();
  if (a.compare) return lazy::cli::compare_folders(a);
  if (a.models.empty()) lazy::fail("eval", "expected a model folder, found none");
  if (a.log_samples && a.output.empty()) lazy::fail("eval", "--log-samples needs --output");
  if (a.no_bos && (a.bos || a.bos_every_window))
    lazy::fail("eval", "expected --no-bos or {}, found both", a.bos ? "--bos" : "--bos-every-window");
  for (std::string& model : a.models) model = lazy::cli::resolve_model_folder("eval", model, a.download);
  const int64_t batch_size = lazy::cli::parse_batch_size(a.batch_size);
  const auto info = lazy::distributed::rank_info_from_environment();
  lazy::distributed::run_as_rank(
      info, lazy::resolve_device(a.device), kTimeout,
      [&](lazy::distributed::Communicator& ranks, const std::string& device) {
        const lazy::cli::EvalMachine machine{device, {.batch_size = batch_size, .ranks = &ranks}, ranks.is_rank0()};
        lengths.options.lengths.empty() ? lazy::cli::evaluate_models(a, machine)
                                        : lazy::cli::evaluate_lengths(lengths, a, machine);
      });
}

}  // namespace

LAZY_COMMAND(eval, "Evaluate held-out loss and benchmarks of a model", [](CLI::App& command) {
  auto a = std::make_shared<lazy::cli::EvalArguments>();
  auto lengths = std::make_shared<lazy::cli::LengthArguments>();
  command.add_option("model", a->models,
                     "Model folders or run folders of `lazy train`; several models are compared with the first");
  lazy::cli::add_download_option(command, a->download);
  command
      .add_option("--tasks", a->tasks,
                  "Tasks, groups, all, FILE.toml, or heldout (default: all tasks with available data)")
      ->delimiter(',');
  command.add_flag("--list-tasks", a->list_tasks, "List the tasks and their groups, and exit");
  command.add_option("--data", a->data,
                     "Folder with the benchmarks' files; `python -m lazy_attention.download` downloads them");
  command.add_option("--num-fewshot", a->num_fewshot, "Number of solved examples before each question")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_option("--fewshot-seed", a->fewshot_seed, "Seed for selecting the examples")->capture_default_str();
  command
      .add_option(
          "--limit", a->limit,
          "Maximum number of documents per task (--corpus: sequences; --text: windows); values below 1 are a fraction")
      ->check(lazy::cli::kPositive);
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare` for the held-out loss (task heldout)");
  command.add_option("--split", a->split, "Split of --corpus")->capture_default_str();
  command.add_option("--text", a->text, "Text file for the held-out loss (task heldout)");
  command
      .add_option("--max-length", a->max_length,
                  "Maximum number of input tokens (default: the model's training length)")
      ->check(CLI::Range(2, 1 << 24));
  lazy::cli::add_model_options(command, a->model_options);
  command.add_flag(
      "--bos", a->bos,
      "Put BOS before every text or sequence (default: before texts of benchmarks, if the tokenizer adds BOS)");
  command.add_flag("--no-bos", a->no_bos, "Do not add BOS, even if the tokenizer adds it");
  command.add_flag("--bos-every-window", a->bos_every_window,
                   "Put BOS before every text and at the start of each window of long texts (wikitext, --text)");
  command.add_option("--batch-size", a->batch_size, "Sequences per batch, or auto")->capture_default_str();
  command.add_option("--device", a->device, "Device to compute on")
      ->check(lazy::cli::one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--dtype", a->dtype, "Computing precision")
      ->check(lazy::cli::one_of({"fp32", "bf16"}))
      ->capture_default_str();
  command.add_option(
      "--output", a->output,
      "Write the results here: a folder, or a file NAME.json (docs/guides/length.md describes the files of --lengths)");
  command.add_flag("--log-samples", a->log_samples,
                   "Also write a record of every document, for --compare; needs --output");
  command.add_flag("--compare", a->compare,
                   "Compare folders of results instead of evaluating: differences, intervals, paired tests");
  command.add_flag("--json", a->json, "Print the results as JSON instead of a table");
  command.footer(R"(
Examples:
  lazy eval runs/lazy/model --tasks all --data data --output results --log-samples
  lazy eval runs/lazy/model --tasks piqa,arc_easy --data data --num-fewshot 5 --limit 100
  lazy eval runs/lazy/model --tasks my_task.toml --data data
  lazy eval runs/lazy/model runs/softmax/model --tasks all --data data
  lazy eval --compare results/lazy results/softmax
  lazy eval runs/lazy/model --corpus corpus --output runs/lazy/eval.json
  lazy eval runs/lazy/model --text book.txt --max-length 512
  lazy eval runs/lazy/model --tasks wikitext --data data --bos-every-window   # for a model trained with BOS first
  lazy eval runs/lazy/model --text book.txt --max-length 8192 --positions yarn:4
  lazy eval runs/lazy/model --text book.txt --max-length 8192 --cache streaming:4+508
  lazy eval runs/lazy/model runs/softmax/model --lengths 512,1024,2048,4096 --data data --report lengths.html
  lazy eval runs/lazy/model --lengths 512,1024,2048 --tasks passkey,recall --variant rope-base=500000
  torchrun --no-python --nproc-per-node 4 lazy eval runs/lazy/model --tasks all --data data

Tasks follow lm-evaluation-harness 0.4.13; `lazy eval --list-tasks` names them, docs/guides/evaluation.md
describes their files, the schema of the results, and how to add a task. heldout: loss in nats per token,
bits per byte, perplexity per token.)");
  lazy::cli::add_length_options(command, *lengths);
  command.callback([a, lengths, &command] {
    lazy::install_stop_handlers();
    a->command = lazy::cli::command_line(command);
    run(*a, *lengths);
  });
});
