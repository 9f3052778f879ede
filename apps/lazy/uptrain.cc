// `lazy uptrain MODEL_DIR`: converts a pretrained model to Lazy Attention, continues its training, and compares the
// result with a softmax model. python/lazy_lab/uptrain.py defines the steps. They run other commands of this program.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "command.h"
#include "common_options.h"
#include "data/corpus/source.h"
#include "lab_process.h"
#include "model/device.h"
#include "model_path.h"
#include "train/sizing.h"

namespace lazy::cli {
namespace {

namespace fs = std::filesystem;

struct UptrainArguments {
  std::string model, corpus, tokens, output, data, heldout_tokens, device = "auto", dtype = "auto", report_only;
  std::vector<std::string> text, tasks, only, lengths;
  std::vector<int64_t> seed;
  int64_t seeds = 1, window = 512, seq_len = 2048, batch_tokens = 131072, batch_size = 0, gpus = 1, limit = 0,
          samples = 0;
  double lr = 3e-4, weight_decay = 0, to = -1, anneal = 0.35, validation = 0.02;
  bool control = false, download = false, dry_run = false;
};

void run(const UptrainArguments& a, CLI::App& command) {
  const bool trains = a.report_only.empty() && !a.model.empty();
  const std::string model = trains ? resolve_model_folder("uptrain", a.model, a.download) : a.model;
  std::vector<std::string> text, tasks;
  std::transform(a.text.begin(), a.text.end(), std::back_inserter(text), absolute_path);
  for (const std::string& task : a.tasks)
    tasks.push_back(fs::path(task).extension() == ".toml" ? absolute_path(task) : task);
  TextFacts facts{.exact = false};
  if (trains && !text.empty()) facts = text_facts(find_sources(text, std::nullopt));
  const int64_t max_document = facts.documents > 0 ? train::cut_documents_at(facts.bytes, facts.documents) : 0;
  start_lab("uptrain", {{"program", program_path()},
                        {"line", command_line(command)},
                        {"threads", root(command).count("--threads") > 0 ? thread_count() : 0},
                        {"model", absolute_path(model)},
                        {"text", text},
                        {"corpus", absolute_path(a.corpus)},
                        {"text_bytes", facts.exact ? facts.bytes : 0},  // 0: size unknown
                        {"max_document", max_document},
                        {"validation", a.validation},
                        {"tokens", a.tokens},
                        {"output", absolute_path(a.output)},
                        {"control", a.control},
                        {"seeds", a.seeds},
                        {"seed", a.seed},
                        {"window", a.window},
                        {"to", a.to},
                        {"anneal", a.anneal},
                        {"seq_len", a.seq_len},
                        {"batch_tokens", a.batch_tokens},
                        {"batch_size", a.batch_size},
                        {"lr", a.lr},
                        {"weight_decay", a.weight_decay},
                        {"tasks", tasks},
                        {"data", absolute_path(a.data)},
                        {"lengths", a.lengths},
                        {"heldout_tokens", a.heldout_tokens},
                        {"limit", a.limit},
                        {"samples", a.samples},
                        {"device", a.device},
                        {"dtype", a.dtype},
                        {"gpus", a.gpus},
                        {"only", a.only},
                        {"dry_run", a.dry_run},
                        {"report_only", absolute_path(a.report_only)}});
}

}  // namespace

LAZY_COMMAND(uptrain, "Convert a pretrained model to a Lazy model, and measure the effect", [](CLI::App& command) {
  auto a = std::make_shared<UptrainArguments>();
  command.add_option("model", a->model, "Model folder or run folder with softmax attention");
  add_download_option(command, a->download);
  command.add_option("--text", a->text, "Text to train on: files or folders as for `lazy data prepare`");
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare --tokenizer MODEL`, instead of --text");
  command.add_option("--validation", a->validation, "Fraction of the documents of --text in the validation split")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  command.add_option(
      "--tokens", a->tokens,
      "Number of tokens per training run, such as 30M (1k is 1000 here and 1024 in --lengths); at most four "
      "passes over the text");
  command.add_option("--output", a->output, "Folder of the results; repeat the command to continue an interrupted run");
  command.add_flag("--control", a->control, "Also train the softmax model on the same tokens");
  command.add_option("--seeds", a->seeds, "Number of training runs of each kind, with seeds 1, 2, ...")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--seed", a->seed, "Only these seeds, such as 2,3, instead of --seeds")
      ->delimiter(',')
      ->check(kNonNegative);
  command.add_option("--window", a->window, "Number of distances with a learned bias; 0: no bias")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--to", a->to, "Value to which the offset is shifted during the training, starting at 0")
      ->capture_default_str();
  command.add_option("--anneal", a->anneal, "Fraction of the steps during which the offset is shifted")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seq-len", a->seq_len, "Tokens per sequence")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command.add_option("--batch-tokens", a->batch_tokens, "Tokens per step")->check(kPositive)->capture_default_str();
  command.add_option("--batch-size", a->batch_size, "Sequences per micro-batch; 0: chosen for the device")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--lr", a->lr, "Peak learning rate")->check(kPositive)->capture_default_str();
  command.add_option("--weight-decay", a->weight_decay, "Weight decay of AdamW")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--tasks", a->tasks, "Benchmarks, with the names of `lazy eval --tasks`; requires --data")
      ->delimiter(',');
  command.add_option("--data", a->data, "Folder with the benchmarks' files");
  command
      .add_option("--lengths", a->lengths,
                  "Context lengths at which the decoding speed is measured; 1k is 1024 tokens (default: 1k,8k,32k on a "
                  "GPU, 256,1k on a CPU)")
      ->delimiter(',');
  command.add_option("--heldout-tokens", a->heldout_tokens,
                     "Maximum number of tokens on which each loss is measured (default: the whole held-out split on a "
                     "GPU; on a CPU a tenth of --tokens, but at least 4096)");
  command
      .add_option("--limit", a->limit,
                  "Maximum number of documents per benchmark (default: all documents on a GPU, 100 on a CPU)")
      ->check(kPositive);
  command
      .add_option("--samples", a->samples,
                  "Number of texts on which the attention weights are measured (default: 64 on a GPU, 8 on a CPU)")
      ->check(kPositive);
  command.add_option("--device", a->device, "Device to compute on")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--dtype", a->dtype, "Computing precision; auto: bf16 on a GPU, fp32 on a CPU")
      ->check(one_of({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command.add_option("--gpus", a->gpus, "Number of GPUs (ranks) per training run, started with torchrun")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--only", a->only, "Run only these groups of steps")
      ->delimiter(',')
      ->check(one_of({"train", "eval", "speed", "report"}));
  command.add_flag("--dry-run", a->dry_run, "Only list the steps with estimates of their time, and write nothing");
  command.add_option("--report-only", a->report_only, "Only write the report of this folder, from its results.json");
  command.footer(R"(
Examples:
  lazy uptrain smollm2 --text wiki/*.jsonl.zst --tokens 30M --output up --control
  lazy uptrain smollm2 --corpus corpus --tokens 30M --output up --control --seeds 3 --tasks piqa,arc_easy --data data
  lazy uptrain smollm2 --text book.txt --tokens 20k --seq-len 256 --batch-tokens 2048 --output up   # on a CPU
  lazy uptrain smollm2 --text book.txt --tokens 20k --seq-len 256 --batch-tokens 2048 --output up --dry-run
  CUDA_VISIBLE_DEVICES=1 lazy uptrain ... --output up    # a second process with the same folder shares the steps
  lazy uptrain --report-only up
  lazy generate up/runs/lazy-seed1 --prompt "Once upon a time"

Writes up/results.json, up/report.html and up/report.md; up/runs/lazy-seed1/model is the model. The report needs Python
with jinja2, matplotlib and scipy (see `lazy doctor`); the measurements need no package.)");
  command.callback([a, &command] { run(*a, command); });
});

}  // namespace lazy::cli
