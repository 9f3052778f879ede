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
#include "eval/evaluate.h"
#include "model/tokenizer_match.h"
#include "model_options.h"

namespace {
namespace fs = std::filesystem;

struct EvalArguments {
  std::string model, data, corpus, split = "validation", text, output, dtype = "fp32";
  std::vector<std::string> tasks;
  lazy::eval::EvalOptions options;
  lazy::ModelOptions model_options;
  int64_t limit = 0;
  bool json = false;
};

// What was asked for, spelled out: with no --tasks, whatever the given data serves.
std::vector<std::string> wanted_tasks(const EvalArguments& a) {
  std::vector<std::string> names = a.tasks;
  if (names.empty()) {
    if (!a.corpus.empty() || !a.text.empty()) names.push_back("heldout");
    if (!a.data.empty()) names.push_back("wikitext");
    if (names.empty()) lazy::fail("eval", "nothing to evaluate on: expected --corpus, --text or --data, found none");
  }
  if (!a.corpus.empty() && !a.text.empty()) lazy::fail("eval", "heldout: expected --corpus or --text, found both");
  for (const auto& name : names) {
    if (name == "heldout") {
      if (a.corpus.empty() && a.text.empty()) lazy::fail("eval", "task heldout needs --corpus CORPUS_DIR or --text FILE");
    } else {
      lazy::eval::find_task(name);
      if (a.data.empty()) lazy::fail("eval", "task {} needs --data DIR", name);
    }
  }
  return names;
}

void evaluate(const EvalArguments& a) {
  const auto names = wanted_tasks(a);
  if (!a.output.empty() && fs::is_directory(a.output)) lazy::fail("eval", "--output {}: expected a file's name, found a folder", a.output);
  const auto streaming = a.model_options.streaming();
  auto model = lazy::open_model(a.model, a.model_options);
  if (a.dtype == "bf16") model.set_compute_dtype(at::kBFloat16);
  const auto tokenizer = lazy::load_tokenizer(a.model);
  lazy::check_tokenizer(model.config(), tokenizer->fingerprint(), tokenizer->vocab_size(), a.model);
  lazy::eval::EvalOptions options = a.options;
  if (a.limit > 0) options.limit = a.limit;
  options.cache = streaming;

  std::vector<lazy::eval::TaskResult> results;
  for (const auto& name : names) {
    if (name != "heldout") {
      results.push_back(lazy::eval::evaluate_task(model, *tokenizer, lazy::eval::find_task(name), a.data, options));
    } else if (!a.corpus.empty()) {
      results.push_back(lazy::eval::evaluate_corpus(model, a.corpus, a.split, options));
    } else {
      results.push_back(lazy::eval::evaluate_text(model, *tokenizer, lazy::to_valid_utf8(lazy::read_file(a.text)), a.text, options));
    }
  }
  lazy::eval::ResultInfo info;
  info.model_path = a.model;
  info.model_kind = model.config().kind();
  info.command = fmt::format("lazy eval {}{}{}{}{}", a.model, a.corpus.empty() ? "" : " --corpus " + a.corpus, a.text.empty() ? "" : " --text " + a.text,
                             a.data.empty() ? "" : " --data " + a.data, a.tasks.empty() ? "" : fmt::format(" --tasks {}", fmt::join(a.tasks, ",")));
  info.command += a.model_options.command_line();
  if (a.options.bos) info.command += " --bos";
  if (a.options.max_length > 0) info.command += fmt::format(" --max-length {}", a.options.max_length);
  if (a.limit > 0) info.command += fmt::format(" --limit {}", a.limit);
  if (a.dtype != "fp32") info.command += " --dtype " + a.dtype;
  info.device = model.device().str();
  info.dtype = a.dtype;
  info.tokenizer_fingerprint = fmt::format("{:016x}", tokenizer->fingerprint());
  info.parameters = lazy::count_parameters(model.config()).total;
  info.batch_size = options.batch_size;
  info.max_length = options.max_length > 0 ? options.max_length : model.config().max_length;
  info.bos = options.bos;
  info.limit = options.limit;
  const std::string json = lazy::eval::to_json(results, info).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!a.output.empty()) lazy::write_file_atomic(a.output, json);
  fmt::print("{}", a.json ? json : lazy::eval::to_table(results));
}

}  // namespace

LAZY_COMMAND(eval, "Held-out loss and benchmarks of a model", [](CLI::App& command) {
  auto a = std::make_shared<EvalArguments>();
  command.add_option("model", a->model, "Model folder")->required();
  command.add_option("--tasks", a->tasks, "heldout, wikitext (default: what the given data serves)")->delimiter(',');
  command.add_option("--data", a->data, "Folder with the benchmarks' files");
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare`, for heldout");
  command.add_option("--split", a->split, "The corpus' split")->capture_default_str();
  command.add_option("--text", a->text, "Text file, for heldout");
  command.add_option("--max-length", a->options.max_length, "Tokens a window (default: the model's training length)")->check(CLI::Range(2, 1 << 24));
  lazy::cli::add_model_options(command, a->model_options);
  command.add_flag("--bos", a->options.bos, "BOS before every text or sequence");
  command.add_option("--batch-size", a->options.batch_size, "Windows a batch")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  command.add_option("--limit", a->limit, "Documents (corpus: sequences) at most")->check(CLI::PositiveNumber);
  command.add_option("--dtype", a->dtype, "Computing precision")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command.add_option("--output", a->output, "Write the results here, in lm-evaluation-harness's schema");
  command.add_flag("--json", a->json, "Print the results as JSON instead of a table");
  command.footer(R"(
Examples:
  lazy eval runs/lazy/model --corpus corpus --output runs/lazy/eval.json
  lazy eval runs/lazy/model --text book.txt --max-length 512
  lazy eval runs/lazy/model --tasks wikitext --data data/eval
  lazy eval runs/lazy/model --text book.txt --max-length 8192 --positions yarn:4
  lazy eval runs/lazy/model --text book.txt --max-length 8192 --cache streaming:4+508

heldout: loss in nats per token, bits per byte, perplexity per token.
wikitext: WikiText-2 raw documents; perplexity per word of the original text, as lm-evaluation-harness computes it.
  DIR holds wikitext-2-raw-test.txt (or wiki.test.raw), itself or in eval/.)");
  command.callback([a] {
    lazy::install_stop_handlers();
    evaluate(*a);
  });
});
