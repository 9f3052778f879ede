// `lazy measure KIND MODEL_DIR`: measurements of one trained model, as JSON, for the experiments of `lazy lab`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/stop.h"
#include "core/text.h"
#include "measure/kinds.h"
#include "model/device.h"
#include "model_path.h"

namespace {
namespace fs = std::filesystem;
using lazy::measure::Json;
using lazy::measure::Kind;

struct MeasureArguments {
  std::string kind, model, corpus, data, json, device = "auto";
  std::vector<std::string> set, text, baselines;
  bool list = false, download = false;
};

void list(const MeasureArguments& a) {
  Json all = Json::array();
  std::string text;
  for (const Kind& kind : lazy::measure::kinds()) {
    all.push_back({{"kind", kind.name}, {"help", kind.help}, {"input", kind.input}, {"settings", kind.defaults}});
    text += fmt::format("{}: {}\n", kind.name, kind.help);
    text += fmt::format("  reads: the model{}{}\n", kind.input.empty() ? "" : " and --", kind.input);
    for (const auto& [key, value] : kind.defaults.items()) text += fmt::format("  {} = {}\n", key, value.dump());
  }
  fmt::print("{}", a.json == "-" ? all.dump(2) + "\n" : text);
}

// Returns {NAME: DIR} for the arguments NAME=DIR of --baseline.
Json baseline_folders(const MeasureArguments& a) {
  Json folders = Json::object();
  for (const std::string& baseline : a.baselines) {
    const size_t equals = baseline.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == baseline.size())
      lazy::fail("measure", "--baseline: expected NAME=DIR, found '{}'", baseline);
    const std::string name = baseline.substr(0, equals);
    if (folders.contains(name)) lazy::fail("measure", "--baseline: expected different names, found '{}' twice", name);
    folders[name] = lazy::cli::resolve_model_folder("measure", baseline.substr(equals + 1), a.download);
  }
  return folders;
}

void check_inputs(const Kind& kind, const MeasureArguments& a) {
  if (a.model.empty()) lazy::fail("measure", "{}: expected a model folder, found no argument", kind.name);
  if (!a.json.empty() && a.json != "-" && fs::is_directory(a.json))
    lazy::fail("measure", "--json {}: expected a file's name, found a folder", a.json);
  if (kind.input.empty() && !(a.text.empty() && a.corpus.empty()))
    lazy::fail("measure", "{}: reads only the model, expected neither --text nor --corpus", kind.name);
  if (kind.input == "text" && a.text.empty() == a.corpus.empty())
    lazy::fail("measure", "{}: expected --text FILES or --corpus DIR, found {}", kind.name,
               a.text.empty() ? "neither" : "both");
  if (kind.input == "corpus" && (a.corpus.empty() || !a.text.empty()))
    lazy::fail("measure", "{}: expected --corpus DIR without --text, found {}", kind.name,
               a.corpus.empty() ? "no --corpus" : "both");
  if (!a.corpus.empty() && !fs::exists(fs::path(a.corpus) / "corpus.json"))
    lazy::fail("measure", "--corpus {}: expected a corpus of `lazy data prepare`, found {}", a.corpus,
               fs::exists(a.corpus) ? "no corpus.json" : "nothing");
  if (!a.baselines.empty() && kind.name != "speed" && kind.name != "model_latency")
    lazy::fail("measure", "--baseline: expected the kind speed or model_latency, found {}", kind.name);
}

void measure(const MeasureArguments& a) {
  if (a.list) return list(a);
  if (a.kind.empty()) lazy::fail("measure", "expected a kind of measurement or --list, found no argument");
  const Kind& kind = lazy::measure::find_kind(a.kind);
  const Json settings = lazy::measure::settings_of(kind, a.set);
  check_inputs(kind, a);
  lazy::measure::ExperimentInputs run{settings, lazy::resolve_device(a.device)};
  run.settings["study"] = kind.name;
  run.settings["model"] = lazy::cli::resolve_model_folder("measure", a.model, a.download);
  if (!a.text.empty()) run.settings["text"] = a.text;
  if (!a.corpus.empty()) run.settings["corpus"] = a.corpus;
  if (!a.data.empty()) run.settings["data"] = a.data;
  if (!a.baselines.empty()) run.settings["baselines"] = baseline_folders(a);
  const auto begin = lazy::Clock::now();
  Json out{{"kind", kind.name}, {"settings", settings}, {"values", kind.run(run)}};
  out["seconds"] = lazy::seconds_since(begin);
  const std::string dump = out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (a.json.empty() || a.json == "-") {
    fmt::print("{}", dump);
  } else {
    lazy::write_file_atomic(a.json, dump);
  }
}

}  // namespace

LAZY_COMMAND(measure, "Run one measurement of `lazy lab` on a model", [](CLI::App& command) {
  auto a = std::make_shared<MeasureArguments>();
  command.add_option("kind", a->kind, "Kind of measurement, see --list");
  command.add_option("model", a->model, "Model folder, or run folder of `lazy train`");
  lazy::cli::add_download_option(command, a->download);
  command.add_flag("--list", a->list, "List the kinds with their settings and default values, and exit");
  lazy::cli::add_repeated_option(command, "--set", a->set, "Setting of the kind, key=value (may be repeated)");
  command.add_option("--text", a->text, "Text files or folders to measure on");
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare`; its validation split is read");
  command.add_option("--data", a->data, "Folder with the benchmarks' files, for the parts wikitext and lambada");
  lazy::cli::add_repeated_option(command, "--baseline", a->baselines,
                                 "For the kinds speed and model_latency: NAME=DIR, another model to time (repeatable)");
  command.add_option("--device", a->device, "Device to compute on")
      ->check(lazy::cli::one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--json", a->json, "Write the result to this file (default, and -: standard output)");
  command.footer(R"(
Examples:
  lazy measure --list
  lazy measure model runs/lazy --corpus corpus --set parts=heldout,sinks --json lazy.json
  lazy measure spread gpt2 --text book.txt --set texts=8
  lazy measure speed runs/lazy --baseline softmax=runs/softmax --corpus corpus --set lengths=512,2048

The result is one JSON object with the keys kind, settings, values and seconds.)");
  command.callback([a] {
    lazy::cli::share_cores();
    lazy::install_stop_handlers();
    measure(*a);
  });
});
