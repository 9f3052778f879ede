// `lazy report RUN_DIR...`: writes one HTML page about one or several runs.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "report/report.h"
#include "report/run.h"
#include "sinks/attention_maps.h"
#include "train/checkpoint.h"

namespace {
namespace fs = std::filesystem;

// Adds learned parameters of the finished model or the newest checkpoint. A run in progress may remove the checkpoint
// while it is being read.
void add_learned(lazy::report::RunData& run) {
  if (fs::exists(run.folder / "model" / "config.json")) {
    run.learned = lazy::sinks::learned_parameters(run.folder / "model");
    return;
  }
  const lazy::train::CheckpointStore store(run.folder / "checkpoints", 0);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto steps = store.steps();
    if (steps.empty()) break;
    try {
      run.learned = lazy::sinks::learned_parameters(store.path(steps.back()));
      return;
    } catch (const lazy::Error&) {
      if (fs::exists(store.path(steps.back()))) throw;
    }
  }
  run.missing.push_back("neither model/ nor a checkpoint was found: learned offsets and distance biases are omitted");
}

void write_report(const std::vector<std::string>& folders, const std::string& output, const std::string& command) {
  if (fs::is_directory(output)) lazy::fail("report", "--output {}: expected a file's name, found a folder", output);
  std::vector<lazy::report::RunData> runs;
  for (const std::string& folder : folders) {
    lazy::report::RunData run = lazy::report::load_run(folder);
    add_learned(run);
    const std::string status = lazy::report::status_text(run);
    if (!status.empty()) lazy::log::info("{}: {}", run.name, status);
    runs.push_back(std::move(run));
  }
  lazy::write_file_atomic(output, lazy::report::render(runs, {command, lazy::today()}));
  fmt::print("{}\n", output);
}

}  // namespace

LAZY_COMMAND(report, "Write an HTML page about one or several runs", [](CLI::App& command) {
  auto folders = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>("report.html");
  command.add_option("runs", *folders, "Folders of runs (docs/reference/run-directory.md)")->required();
  command.add_option("--output", *output, "Page to write")->capture_default_str();
  command.footer(R"(
Examples:
  lazy report runs/lazy runs/softmax
  lazy report runs/lazy --output lazy.html

The page is self-contained: styles and pictures are inline. Missing parts of a run (eval.json of `lazy eval --output`,
sinks.json of `lazy sinks --json`, samples.json of `lazy generate --json`) are left out and listed at the end.)");
  command.callback([folders, output, &command] { write_report(*folders, *output, lazy::cli::command_line(command)); });
});
