// `lazy repro`: recipes for the tables and figures of the paper.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/benchmarks.h"
#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/text.h"
#include "evidence.h"
#include "model/device.h"
#include "model_path.h"
#include "repro/configs.h"
#include "repro/cost.h"
#include "repro/evidence/protocol.h"
#include "repro/report.h"

namespace {
namespace fs = std::filesystem;
using namespace lazy::repro;

struct ReproArguments {
  std::string recipe, scale = "tiny", device = "auto", output = "repro", data, corpus;
  std::vector<std::string> text, domains, models, only;
  int64_t seeds = 1;
  bool dry_run = false, report = false, json = false, download = false;
  lazy::cli::EvidenceArguments evidence;
};

// Redirects the tables that the benchmarks print to standard error, because standard output is reserved for the report.
class StdoutToStderr {
 public:
  StdoutToStderr() : saved_(::dup(1)) {
    std::fflush(stdout);
    ::dup2(2, 1);
  }
  ~StdoutToStderr() {
    std::fflush(stdout);
    ::dup2(saved_, 1);
    ::close(saved_);
  }

 private:
  int saved_;
};

double time_of(const Json& rows, const std::string& variant, const char* key) {
  for (const Json& row : rows) {
    if (row.at("variant") == variant) return row.at(key).get<double>();
  }
  lazy::fail_run("repro", "the benchmark does not have a variant '{}'", variant);
}

// Measures the ratio of the softmax time to the Elastic-Softmax time in several runs of the benchmarks.
Json latency(const Json& settings) {
  const StdoutToStderr quiet;
  const Json &a = settings.at("attention"), &d = settings.at("decode");
  lazy::benchmarks::AttentionBenchmark attention;
  lazy::benchmarks::DecodeBenchmark decode;
  attention.device = decode.device = settings.at("device").get<std::string>();
  attention.dtypes = decode.dtypes = {settings.at("dtype").get<std::string>()};
  attention.head_dims = decode.head_dims = {settings.at("head_dim").get<int64_t>()};
  attention.batch = a.at("batch");
  attention.length = a.at("length");
  attention.heads = a.at("heads");
  decode.batch = d.at("batch");
  decode.keys = d.at("keys");
  decode.heads = decode.kv_heads = d.at("heads").get<int64_t>();
  attention.repeats = decode.repeats = 5;
  Json out = Json::object();
  for (int round = 0; round < settings.at("rounds").get<int>(); ++round) {
    lazy::end_if_stopped("repro");
    const Json rows = Json(lazy::benchmarks::run_attention(attention)).at("rows"),
               tokens = Json(lazy::benchmarks::run_decode(decode)).at("rows");
    const auto add = [&](const char* name, const Json& from, const char* key, const char* alive) {
      out[name]["ratios"].push_back(time_of(from, "softmax", key) / time_of(from, "elastic", key));
      out[name]["alive"] = time_of(from, "elastic", alive);
    };
    add("forward", rows, "forward_ms", "alive_pairs");
    add("forward_backward", rows, "forward_backward_ms", "alive_pairs");
    add("decode", tokens, "ms", "alive");
  }
  return out;
}

std::pair<std::string, fs::path> named_folder(const char* option, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size())
    lazy::fail("repro", "{}: expected NAME=DIR, found '{}'", option, text);
  const std::string name = text.substr(0, equals);
  if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != std::string::npos) {
    lazy::fail("repro", "{}: expected a name of letters, digits, - and _, found '{}'", option, name);
  }
  return {name, text.substr(equals + 1)};
}

Conditions conditions(const ReproArguments& a, const Scale& scale) {
  // Plans and reports may be made for a different machine.
  const bool elsewhere = (a.dry_run || a.report) && a.device == "cuda";
  Conditions c{scale, a.corpus, a.data, {}, a.seeds, elsewhere ? a.device : lazy::resolve_device(a.device)};
  for (const std::string& path : a.text) c.text.push_back(fs::absolute(path).string());
  for (const std::string& domain : a.domains) {
    const auto [name, folder] = named_folder("--domain", domain);
    if (!c.domains.emplace(name, folder).second) lazy::fail("repro", "--domain: '{}' is given twice", name);
  }
  for (const std::string& model : a.models) {
    // A folder without a name is registered as model "model".
    c.models.push_back(model.find('=') == std::string::npos ? std::pair<std::string, fs::path>("model", model)
                                                            : named_folder("--model", model));
    if (!a.dry_run && !a.report)
      c.models.back().second = lazy::cli::resolve_model_folder("repro", c.models.back().second.string(), a.download);
    for (size_t n = 0; n + 1 < c.models.size(); ++n) {
      if (c.models[n].first == c.models.back().first)
        lazy::fail("repro", "--model: '{}' is given twice; name each: NAME=DIR", c.models[n].first);
    }
  }
  return c;
}

void list(const ReproArguments& a) {
  const TemporaryFolder configs;
  const RecordedRuns records(a.evidence.records, "", configs.path);
  Conditions recorded = conditions(a, find_scale("small"));
  recorded.device = "cuda";  // the scale small is meant for a GPU
  for (const auto& block : embedded_protocol().blocks)
    recorded.seeds = std::max(recorded.seeds, static_cast<int64_t>(block.seeds.size()));
  recorded.domains = {{"any", ""}};  // a placeholder; recipes about domains need at least one domain
  Json all = Json::array();
  std::string table =
      "| recipe | description | reproduces | last run | models | tiny, one busy CPU core | small, one H200 | paper, "
      "one H200 |\n|---|---|---|---|---|---|---|---|\n";
  for (const Recipe& recipe : recipes()) {
    Json item{{"recipe", recipe.name}, {"title", recipe.title}, {"reproduces", recipe.source}};
    std::string cells = " – |";
    item["last_run"] = nullptr;
    auto last = last_run(recipe.name, a.output);
    if (!last) last = last_run(recipe, recorded, records);
    if (last) {
      item["last_run"] = {{"scale", last->scale}, {"seeds", last->seeds}, {"date", last->date}};
      cells = fmt::format(" {}, {} seed{}, {}", last->scale, last->seeds, last->seeds == 1 ? "" : "s", last->date);
      if (last->missing > 0) {
        item["last_run"]["missing"] = last->missing;
        cells += fmt::format(", without {} step{}", last->missing, last->missing == 1 ? "" : "s");
      }
      cells += " |";
    }
    for (const Scale& scale : scales()) {
      const Cost estimate = cost(recipe, conditions(a, scale), configs.path);
      item["cost"][scale.name] = {{"models", estimate.trainings},
                                  {"tokens", estimate.tokens},
                                  {"seconds", estimate.seconds},
                                  {"machine", machine(scale)},
                                  {"basis", basis(scale)}};
      if (scale.name == "tiny") cells += fmt::format(" {} |", estimate.trainings);
      cells += estimate.seconds < 360000 ? fmt::format(" {} |", lazy::human_seconds(estimate.seconds))
                                         : fmt::format(" {:.0f} days |", estimate.seconds / 86400);
    }
    table += fmt::format("| {} | {} | {} |{}\n", recipe.name, recipe.title, recipe.source, cells);
    all.push_back(item);
  }
  if (a.json) return fmt::print("{}\n", all.dump(2));
  fmt::print(
      "{}\nThe times (h:mm:ss or m:ss) are for a first run with one seed; recipes with equal steps run them only once. "
      "Times at tiny scale: {}; at the other scales: {}.\nThe date of the last run is from the records in {}, or from "
      "the evidence records in {}.\n",
      table, basis(scales()[0]), basis(scales()[1]), a.output, a.evidence.records);
}

void print_plan(const RecipeRun& run, const Cost& estimate, const ReproArguments& a) {
  const Scale& scale = run.conditions.scale;
  if (a.json) {
    Json plan = to_json(run);
    plan.erase("findings");
    plan.erase("summary");
    plan["cost"] = {{"models", estimate.trainings},
                    {"tokens", estimate.tokens},
                    {"seconds", estimate.seconds},
                    {"machine", machine(scale)},
                    {"basis", basis(scale)}};
    for (const ModelCost& m : estimate.models)
      plan["cost"]["by_model"].push_back({{"model", m.model},
                                          {"trainings", m.trainings},
                                          {"tokens", m.tokens},
                                          {"tokens_per_second", m.tokens_per_second},
                                          {"training_seconds", m.training},
                                          {"measuring_seconds", m.measuring}});
    return fmt::print("{}\n", plan.dump(2));
  }
  fmt::print("{}: {} ({}), scale {}: {}\n", run.recipe->name, run.recipe->title, run.recipe->source, scale.name,
             run.recipe->scale_means(scale));
  for (const StepRun& s : run.steps) {
    fmt::print("  {:<36} {:<9} {}\n", s.step.id, name(s.step.kind),
               !s.left_out.empty() ? "left out: " + s.left_out
               : s.found           ? "done"
                                   : "to do");
  }
  if (!estimate.models.empty())
    fmt::print("\n  {:<22} {:>9} {:>8} {:>10} {:>10} {:>10}\n", "model", "trainings", "tokens", "tokens/s", "training",
               "measuring");
  for (const ModelCost& m : estimate.models) {
    const bool trained = m.trainings > 0;
    fmt::print("  {:<22} {:>9} {:>8} {:>10} {:>10} {:>10}\n", m.model, m.trainings,
               trained ? lazy::human_count(m.tokens) : "–", trained ? lazy::human_count(m.tokens_per_second) : "–",
               trained ? lazy::human_seconds(m.training) : "–", lazy::human_seconds(m.measuring));
  }
  fmt::print("{} models, {} tokens; {} on {} for all steps, {}\n", estimate.trainings,
             lazy::human_count(estimate.tokens), lazy::human_seconds(estimate.seconds), machine(scale), basis(scale));
}

std::string command_line(const ReproArguments& a, const std::string& recipe) {
  std::string line = fmt::format("lazy repro {} --scale {}", recipe, a.scale);
  if (!a.corpus.empty()) line += " --corpus " + a.corpus;
  for (const std::string& text : a.text) line += " --text " + text;
  if (!a.data.empty()) line += " --data " + a.data;
  for (const std::string& domain : a.domains) line += " --domain " + domain;
  for (const std::string& model : a.models) line += " --model " + model;
  if (a.seeds > 1) line += fmt::format(" --seeds {}", a.seeds);
  if (a.report && a.device != "auto") line += " --device " + a.device;  // some default settings depend on the device
  if (!a.evidence.page.empty()) return line + " --report " + a.evidence.page;
  return line + " --output " + a.output + (a.report ? " --report" : "");
}

void check_one_process() {
  if (const char* size = std::getenv("WORLD_SIZE"); size && std::string(size) != "1") {
    lazy::fail("repro", "expected one process, found WORLD_SIZE={}; train with lazy train on several ranks", size);
  }
}

void evidence(const ReproArguments& a) {
  if (!a.report && !(a.evidence.page.empty() && a.evidence.claims.empty()))
    lazy::fail("repro", "evidence: expected --report with a page or --claims, found none");
  check_one_process();
  lazy::cli::run_evidence(a.evidence, {a.corpus, a.data, a.output, a.device, a.only, a.json, a.report});
}

void repro(const ReproArguments& a) {
  if (a.recipe == "list") return list(a);
  if (a.recipe == "evidence") return evidence(a);
  if (a.evidence.list || a.evidence.seconds > 0 || !a.evidence.blocks.empty() || !a.evidence.protocol.empty())
    lazy::fail("repro", "--list, --seconds, --block and --protocol require `lazy repro evidence`, found recipe '{}'",
               a.recipe);
  if (!a.evidence.claims.empty())
    lazy::fail("repro", "--claims requires `lazy repro evidence --report`, found recipe '{}'", a.recipe);
  if (!a.evidence.page.empty() && (!a.report || a.recipe == "all"))
    lazy::fail("repro", "{}: a page requires --report with one recipe, found {}", a.evidence.page,
               a.report ? "all" : "no --report");
  RunOptions options;
  options.conditions = conditions(a, find_scale(a.scale));
  options.output = a.output;
  options.text = a.text;
  options.latency = latency;
  options.records = a.evidence.records;
  options.only = a.only;
  if (!a.only.empty() && a.recipe == "all") lazy::fail("repro", "--only: expected one recipe, found all");
  if (a.report && (a.dry_run || !a.only.empty()))
    lazy::fail("repro", "--report runs nothing: expected neither --dry-run nor --only, found {}",
               a.dry_run ? "--dry-run" : "--only");
  std::vector<const Recipe*> wanted;
  if (a.recipe == "all") {
    for (const Recipe& recipe : recipes()) wanted.push_back(&recipe);
  } else {
    wanted.push_back(&find_recipe(a.recipe));
  }
  if (fs::exists(a.output) && !fs::is_directory(a.output))
    lazy::fail("repro", "--output {}: expected a folder's name, found a file", a.output);
  check_one_process();
  Json all = Json::array();
  for (const Recipe* recipe : wanted) {
    if (a.dry_run) {
      const TemporaryFolder configs;
      const RecipeRun plan = plan_recipe(*recipe, options);
      std::vector<Step> steps;
      for (const StepRun& s : plan.steps) steps.push_back(s.step);
      print_plan(plan, cost(steps, options.conditions, configs.path), a);
      continue;
    }
    RecipeRun run = a.report ? judge_finished(*recipe, options) : run_recipe(*recipe, options);
    const auto steps = static_cast<int64_t>(run.steps.size());
    if (a.report && std::none_of(run.steps.begin(), run.steps.end(), [](const StepRun& s) { return s.found; })) {
      if (a.recipe != "all")
        lazy::fail("repro", "--report: expected finished steps of {} in {}, found none of {}", recipe->name, a.output,
                   steps);
      continue;
    }
    if (!a.report && run.unfinished > 0) {
      lazy::log::info(
          "{}: {} of {} steps remain; add --report to report on the finished steps, or omit --only to run all steps "
          "and report on them",
          recipe->name, run.unfinished, steps);
      continue;
    }
    run.command = command_line(a, a.recipe == "all" ? recipe->name : a.recipe);
    if (a.evidence.page == "-") {
      fmt::print("{}", to_markdown(run));
      continue;
    }
    if (!a.evidence.page.empty()) {
      write_page(run, a.evidence.page);
      lazy::log::info("{}: {}; {}", recipe->name, summary(run), a.evidence.page);
      continue;
    }
    const fs::path report = write_report(run, fs::path(a.output) / options.conditions.scale.name);
    if (a.json) {
      all.push_back(to_json(run));
    } else {
      fmt::print("{}\n", to_markdown(run));
    }
    lazy::log::info("{}: {}; {} (.json, .html)", recipe->name, summary(run), report.string());
  }
  if (a.json && !a.dry_run)
    fmt::print("{}\n", (all.size() == 1 ? all[0] : all).dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

LAZY_COMMAND(repro, "Reproduce the tables and figures of the paper", [](CLI::App& command) {
  auto a = std::make_shared<ReproArguments>();
  command
      .add_option("recipe", a->recipe,
                  "list, all, evidence, a recipe's name, or the file of a custom recipe (FILE.toml)")
      ->required();
  command.add_option("page", a->evidence.page,
                     "--report: the page to write in place of the reports below --output, - for standard output");
  command.add_option("--scale", a->scale, "tiny (minutes on two CPU cores), small (one GPU) or paper")
      ->capture_default_str();
  command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare` to train on");
  command.add_option("--text", a->text,
                     "Text files or folders. At tiny scale, the training corpus is prepared from them; studies use "
                     "them as input text (default: the prose of Perl's manual)");
  command.add_option("--data", a->data, "Folder with the benchmarks' files");
  lazy::cli::add_repeated_option(command, "--domain", a->domains,
                                 "cross-domain: NAME=DIR, a folder of text of another kind (may be repeated)");
  lazy::cli::add_repeated_option(command, "--model", a->models,
                                 "Model folder for a study, DIR or NAME=DIR (may be repeated)");
  lazy::cli::add_download_option(command, a->download);
  command.add_option("--seeds", a->seeds, "Number of training runs (seeds) per model")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  lazy::cli::add_repeated_option(
      command, "--only", a->only,
      "Run only this model with its measurements, only this step with the training that it measures, or only this "
      "run of evidence (CELL.seedK), to divide work among GPUs; with --dry-run, print this part of the plan (may "
      "be repeated)");
  command.add_option("--device", a->device, "Device")
      ->check(lazy::cli::one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--output", a->output, "Folder for steps and reports")->capture_default_str();
  command.add_flag("--dry-run", a->dry_run,
                   "Run nothing: print the steps, which of them are finished, and the expected cost");
  command.add_flag("--report", a->report,
                   "Run nothing: report on the finished steps (claims that need other steps are open), or on the "
                   "records of evidence");
  command.add_flag("--json", a->json, "Print JSON");
  lazy::cli::add_evidence_options(command, a->evidence);
  command.footer(R"(
Examples:
  lazy repro list
  lazy repro fig10 --scale tiny
  lazy repro fig6 --scale small --corpus corpus --data data/eval
  lazy repro cross-domain --scale tiny --domain code=src --domain science=papers
  lazy repro gpt2-gamma --model gpt2
  lazy repro fig3 --model gpt2=models/gpt2 --model bloom=models/bloom-560m --text book.txt
  lazy repro my-claims.toml --scale tiny --seeds 3   # docs/reference/recipes.md
  lazy repro all --scale small --corpus corpus --dry-run
  CUDA_VISIBLE_DEVICES=1 lazy repro fig6 --scale small --corpus corpus --only softmax   # one model on this GPU
  lazy repro fig6 --scale small --seeds 3 --report fig6.md   # from the records of evidence, see --records
  lazy repro evidence --list
  lazy repro evidence --report FILE.md
  lazy repro evidence --corpus corpus --data data/eval --seconds 1700
  lazy repro evidence --corpus corpus --data data/eval --block B --only lazy.seed2

evidence trains and measures the runs of configs/evidence.toml that have no record yet and leaves a record of each in
--records; nothing else of a run is kept.
A run that was stopped or killed goes on where it was when the same command is given again; recipes share what they have
in common. Reports: OUTPUT/SCALE/RECIPE.md, .json and .html. docs/guides/repro.md says what each verdict means.)");
  command.callback([a] {
    if (!a->report && !a->dry_run && !a->evidence.list && a->recipe != "list") lazy::cli::share_cores();
    lazy::install_stop_handlers();
    repro(*a);
  });
});
