// `lazy lab RECIPE`: trains and measures the models of a table or figure of the paper, and writes a page with the
// results. The recipes and steps are in python/lazy_lab/. They run other commands of this program. `lazy repro` is the
// former name of this command.
#include <algorithm>
#include <memory>

#include "command.h"
#include "core/log.h"
#include "lab_process.h"
#include "model/device.h"

namespace lazy::cli {
namespace {

struct LabArguments {
  std::string recipe, scale = "tiny", corpus, data, device = "auto", output = "lab";
  std::vector<std::string> text, domain, model, only;
  int64_t seeds = 1;
  bool dry_run = false, report = false, no_records = false, json = false;
};

// Makes the folder of NAME=DIR, or DIR without a name, absolute.
std::string absolute_folder(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return absolute_path(text);
  return text.substr(0, equals + 1) + absolute_path(text.substr(equals + 1));
}

template <typename Convert>
std::vector<std::string> converted(std::vector<std::string> texts, const Convert& convert) {
  std::transform(texts.begin(), texts.end(), texts.begin(), convert);
  return texts;
}

void run(const LabArguments& a, CLI::App& command) {
  start_lab("lab", {{"program", program_path()},
                    {"line", command_line(command)},
                    {"threads", root(command).count("--threads") > 0 ? thread_count() : 0},
                    {"recipe", a.recipe},
                    {"scale", a.scale},
                    {"corpus", absolute_path(a.corpus)},
                    {"text", converted(a.text, absolute_path)},
                    {"data", absolute_path(a.data)},
                    {"domain", converted(a.domain, absolute_folder)},
                    {"model", converted(a.model, absolute_folder)},
                    {"seeds", a.seeds},
                    {"only", a.only},
                    {"device", a.recipe == "list" ? a.device : resolve_device(a.device)},
                    {"output", absolute_path(a.output)},
                    {"dry_run", a.dry_run},
                    {"report", a.report},
                    {"no_records", a.no_records},
                    {"json", a.json}});
}

void set_up(CLI::App& command) {
  auto a = std::make_shared<LabArguments>();
  command.add_option("recipe", a->recipe, "list, all, or the name of a recipe")->required();
  command
      .add_option("--scale", a->scale,
                  "Size of models and data: tiny (minutes on two CPU cores), small (one GPU) or paper")
      ->capture_default_str();
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare` to train on; required for small and paper");
  command.add_option("--text", a->text,
                     "Text files or folders, from which the corpus of the scale tiny is prepared (default: the prose "
                     "of Perl's manual)");
  command.add_option("--data", a->data, "Folder with the benchmarks' files");
  add_repeated_option(command, "--domain", a->domain,
                      "For the recipe cross-domain: NAME=DIR, a folder of text (may be repeated)");
  add_repeated_option(command, "--model", a->model,
                      "Model folder to study, or NAME=DIR to use instead of training the model NAME (may be repeated)");
  command.add_option("--seeds", a->seeds, "Number of training runs (seeds) per model")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  add_repeated_option(command, "--only", a->only,
                      "Run only this model with its measurements, or only this step with the training that it measures "
                      "(may be repeated)");
  command.add_option("--device", a->device, "Device to compute on")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--output", a->output, "Folder for the results of the steps and for the pages")
      ->capture_default_str();
  command.add_flag("--dry-run", a->dry_run, "Print the steps and which of them are finished; run nothing");
  command.add_flag("--report", a->report, "Write the page of the finished steps; run nothing");
  command.add_flag("--no-records", a->no_records, "Ignore docs/results/records: train and measure everything");
  command.add_flag("--json", a->json, "Print JSON");
  command.footer(R"(
Examples:
  lazy lab list
  lazy lab table2 --scale tiny
  lazy lab rivals --scale small --seeds 3          # from the recorded results
  lazy lab fig6 --scale small --corpus corpus --dry-run
  lazy lab fig3 --model gpt2=models/gpt2 --model bloom=models/bloom-560m --text book.txt
  lazy lab cross-domain --domain code=src --domain science=papers
  CUDA_VISIBLE_DEVICES=1 lazy lab fig6 --scale small --corpus corpus --only softmax   # one model on this GPU

Several processes with the same --output share the steps; a repeated command continues. The page of a recipe is
OUTPUT/SCALE/RECIPE.md. docs/guides/lab.md describes recipes and pages.)");
  command.callback([a, &command] { run(*a, command); });
}

}  // namespace

LAZY_COMMAND(lab, "Reproduce the tables and figures of the paper", set_up);

LAZY_COMMAND(repro, "Former name of `lazy lab`", [](CLI::App& command) {
  set_up(command);
  command.preparse_callback([](size_t) { log::warn("`lazy repro` is now `lazy lab`"); });
});

}  // namespace lazy::cli
