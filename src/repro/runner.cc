#include "repro/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/known_names.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/prepare.h"
#include "eval/tasks/documents.h"
#include "model/device.h"
#include "report/run.h"
#include "repro/configs.h"
#include "repro/evidence/states.h"
#include "repro/evidence/steps.h"
#include "repro/experiments/toys.h"
#include "repro/measure.h"
#include "train/trainer.h"

namespace lazy::repro {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kTinyPieces = 2048;  // vocabulary size of the tokenizer that is trained for a corpus at tiny scale

std::string hash(const std::string& text) { return fmt::format("{:016x}", checksum(text)).substr(0, 10); }

fs::path scale_folder(const RunOptions& options) { return options.output / options.conditions.scale.name; }

bool needs_corpus(const RecipeRun& run) {
  return std::any_of(run.steps.begin(), run.steps.end(),
                     [](const StepRun& s) { return s.step.kind == StepKind::train; });
}

// Returns the folder that contains the model of a training step.
fs::path model_folder(const StepRun& s) {
  const fs::path given = given_folder(s.step);
  return given.empty() ? s.folder / "run" / "model" : given;
}

std::vector<std::string> corpus_text(const RunOptions& options) {
  return options.text.empty() ? demo_text() : options.text;
}

fs::path made_corpus(const RunOptions& options) {
  std::string key;
  for (const std::string& path : corpus_text(options)) key += fs::absolute(path).string() + "\n";
  return scale_folder(options) / ("corpus-" + hash(key));
}

// Returns the given corpus, or creates a corpus from text. At tiny scale, text is the only input that a run needs.
fs::path ensure_corpus(const RunOptions& options) {
  const Conditions& c = options.conditions;
  if (!c.corpus.empty()) {
    if (!fs::exists(c.corpus / "corpus.json"))
      fail("repro", "--corpus {}: expected a corpus from `lazy data prepare`, found {}", c.corpus.string(),
           fs::exists(c.corpus) ? "no corpus.json" : "nothing");
    return c.corpus;
  }
  if (c.scale.name != "tiny")
    fail("repro", "--scale {} needs a corpus from `lazy data prepare`: pass --corpus DIR", c.scale.name);
  const auto text = corpus_text(options);
  if (text.empty())
    fail("repro",
         "no training text: pass --corpus DIR, or --text FILE or FOLDER (the default text, Perl's manual, is "
         "not installed)");
  const fs::path folder = made_corpus(options);
  if (fs::exists(folder / "corpus.json")) return folder;
  PrepareOptions prepare;
  prepare.inputs = text;
  prepare.output = folder;
  prepare.train_pieces = kTinyPieces;
  prepare.train_bytes = 4 << 20;
  prepare.validation = 0.05;
  prepare.documents.max_bytes = 16 << 10;
  fs::create_directories(folder.parent_path());
  prepare_corpus(prepare);
  return folder;
}

// Returns a message about the missing input of a step, or an empty string if nothing is missing.
std::string missing(const Step& step, const RunOptions& options) {
  const fs::path& data = options.conditions.data;
  if (step.needs == "data" && data.empty()) return "no --data DIR was given";
  if (step.settings.contains("task") && fs::is_directory(data)) {
    const auto task = step.settings.at("task").get<std::string>();
    if (!eval::has_task_files(eval::find_task(task), data))
      return fmt::format("no file of {} in the folder --data", task);
  }
  if (step.needs == "model" && options.conditions.models.empty()) return "no --model DIR was given";
  if (step.kind == StepKind::latency && !options.latency) return "this build does not include the benchmarks";
  return "";
}

// Returns a string that identifies the state of a model folder by the names, sizes and modification times of its files.
std::string folder_state(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (!entry.is_regular_file()) continue;
    files.push_back(fmt::format("{} {} {}\n", entry.path().filename().string(), entry.file_size(),
                                entry.last_write_time().time_since_epoch().count()));
  }
  std::sort(files.begin(), files.end());
  return fmt::format("{}", fmt::join(files, ""));
}

std::vector<std::string> on_device(const RunOptions& options) {
  return {"training.device=\"" + options.conditions.device + "\""};
}

// Returns a string of everything that affects the result of a training on the device that the conditions name. This
// device need not be present, so that plans and reports can be created without it.
std::string trained_by(const Step& step, const RunOptions& options, const fs::path& configs, const fs::path& corpus) {
  auto config = train_config(step, configs, corpus, "run", {"training.device=\"cpu\""});
  config.device = options.conditions.device;
  if (config.dtype_auto) config.dtype = resolve_dtype("auto", config.device);
  return config.settings().dump() + config.model.to_json().dump();
}

// Computes the keys of all steps for the given corpus and reads the records of the steps. The key of a step includes
// the key of its model.
void place_steps(RecipeRun& run, const RunOptions& options, const fs::path& corpus, const fs::path& configs) {
  const fs::path base = scale_folder(options);
  write_configs(configs);
  const std::string data = options.conditions.data.empty() ? "" : fs::absolute(options.conditions.data).string();
  std::map<std::string, std::string> keys;
  for (StepRun& s : run.steps) {
    std::string text = fmt::format("{} {}", name(s.step.kind), s.step.settings.dump());
    if (const fs::path given = given_folder(s.step); !given.empty()) {
      text += folder_state(given);
    } else if (s.step.kind == StepKind::train) {
      text += trained_by(s.step, options, configs, corpus) + read_file(corpus / "corpus.json");
    }
    for (const std::string& needed : needed_steps(s.step)) text += keys.at(needed);
    if (s.step.kind == StepKind::tasks || s.step.kind == StepKind::lengths || s.step.kind == StepKind::datasets)
      text += data;
    if (s.step.needs == "model" && !options.conditions.models.empty())
      text += folder_state(s.step.settings.at("model").get<std::string>());
    if (s.step.kind == StepKind::domain)
      text += fs::absolute(options.conditions.domains.at(s.step.settings.at("domain").get<std::string>())).string();
    keys[s.step.id] = hash(text);
    s.left_out = missing(s.step, options);
    if (!s.left_out.empty()) continue;
    s.folder = base / "steps" / (s.step.id + "-" + keys[s.step.id]);
    if (!fs::exists(s.folder / "record.json")) continue;
    s.record = report::load_json(s.folder / "record.json");
    if (!s.record.is_object() || !s.record.contains("values"))
      fail("repro", "{}: expected the record of a step, but it has no values; delete the folder to repeat the step",
           (s.folder / "record.json").string());
    s.found = true;
  }
}

// Returns the steps of the plan with the alternatives that the recorded trials selected.
std::vector<Step> steps_of(const RecipeRun& run) {
  std::vector<Step> steps;
  for (const StepRun& s : run.steps) steps.push_back(with_choice(s.step, recorded_values(run)));
  return steps;
}

// Uses matching records for unfinished steps.
void use_records(RecipeRun& run, const RunOptions& options, const fs::path& configs) {
  if (options.records.empty()) return;
  auto recorded = RecordedRuns(options.records, options.conditions.corpus, configs).steps(steps_of(run));
  for (StepRun& s : run.steps) {
    const auto found = recorded.find(s.step.id);
    if (s.found || found == recorded.end()) continue;
    s.left_out.clear();  // a recorded step does not need its inputs, such as benchmark files
    s.record = std::move(found->second.record);
    s.evidence = found->second.run;
    s.found = true;
  }
}

// Records do not contain models. If an unfinished step needs the model of a recorded training, the model is trained
// again.
void train_again(RecipeRun& run, const std::vector<bool>& wanted) {
  for (StepRun& training : run.steps) {
    if (training.evidence.empty() || training.step.kind != StepKind::train) continue;
    for (size_t n = 0; n < run.steps.size(); ++n) {
      const StepRun& s = run.steps[n];
      if (!contains(measured_models(s.step), training.step.id) || s.found || !s.left_out.empty() || !wanted[n])
        continue;
      training.record = Json();
      training.evidence.clear();
      training.found = false;
      break;
    }
  }
}

// Returns the differences between the configuration that the plan would have trained and the given model.
std::vector<std::string> differences(const Json& planned, const Json& given) {
  std::vector<std::string> out;
  for (const auto& [key, value] : planned.items()) {
    if (!given.contains(key))
      out.push_back(fmt::format("{} absent instead of {}", key, value.dump()));
    else if (given.at(key) != value)
      out.push_back(fmt::format("{} {} instead of {}", key, given.at(key).dump(), value.dump()));
  }
  return out;
}

train::TrainConfig training_config(const StepRun& s, const RunOptions& options, const fs::path& corpus) {
  return train_config(s.step, scale_folder(options) / "configs", corpus, s.folder / "run", on_device(options));
}

Json given_model(const StepRun& s, const RunOptions& options, const fs::path& corpus) {
  const fs::path folder = model_folder(s);
  const auto planned = training_config(s, options, corpus).model;
  const ModelConfig given = ModelConfig::from_directory(folder);
  Json shape = planned.to_json(), other = given.to_json();
  for (const char* of_corpus : {"vocab_size", "bos_token_id", "eos_token_id"}) shape.erase(of_corpus);
  return {{"given", folder.string()},
          {"differences", differences(shape, other)},
          {"parameters", count_parameters(given).total}};
}

Json train_step(const StepRun& s, const RunOptions& options, const fs::path& corpus) {
  if (!given_folder(s.step).empty()) return given_model(s, options, corpus);
  const auto config = training_config(s, options, corpus);
  train::train(config, /*resume=*/true);
  const report::RunData run = report::load_run(s.folder / "run");
  Json values{{"tokens", config.tokens_per_step() * config.steps},
              {"tokens_per_second", run.tokens_per_second},
              {"seconds", run.seconds}};
  values["parameters"] = count_parameters(ModelConfig::from_directory(s.folder / "run" / "model")).total;
  for (const auto& [tokens, loss] : run.validation_loss) {
    values["validation"]["tokens"].push_back(tokens);
    values["validation"]["loss"].push_back(loss);
  }
  return values;
}

// Returns the model folders of the comparison models of a step, by name.
Json folders_beside(const Step& step, const RecipeRun& run) {
  Json out = Json::object();
  for (size_t n = 0; n < step.beside.size(); ++n) {
    for (const StepRun& other : run.steps) {
      if (other.step.id == step.beside[n])
        out[step.settings.at("beside").at(n).get<std::string>()] = model_folder(other).string();
    }
  }
  return out;
}

Json measure_step(const StepRun& s, const RecipeRun& run, const RunOptions& options, const fs::path& corpus) {
  const Conditions& c = options.conditions;
  MeasureInputs inputs{{}, corpus, c.data, {}, c.device, options.progress};
  for (const StepRun& other : run.steps) {
    if (other.step.id != s.step.model) continue;
    inputs.model = model_folder(other);
    if (s.step.kind == StepKind::heldout || s.step.kind == StepKind::lengths)
      inputs.sequences = training_config(other, options, corpus).sequences;
  }
  switch (s.step.kind) {
    case StepKind::train:
      break;
    case StepKind::heldout:
      return measure_heldout(inputs, s.step.settings);
    case StepKind::sinks:
      return measure_sinks(inputs, s.step.settings);
    case StepKind::tasks:
      return measure_tasks(inputs, s.step.settings);
    case StepKind::lengths:
      return measure_lengths(inputs, s.step.settings);
    case StepKind::learned:
      return measure_learned(inputs);
    case StepKind::domain:
      inputs.domain = c.domains.at(s.step.settings.at("domain").get<std::string>());
      return measure_domain(inputs, s.step.settings);
    case StepKind::latency:
      return options.latency(s.step.settings);
    case StepKind::datasets:
      return count_datasets(c.data);
    case StepKind::experiment: {
      ExperimentInputs experiment{s.step.settings, c.device, options.progress};
      if (!s.step.model.empty())
        experiment.settings["model"] = inputs.model.string(), experiment.settings["corpus"] = corpus.string();
      if (!s.step.beside.empty()) experiment.settings["baselines"] = folders_beside(s.step, run);
      return run_recipe_experiment(std::move(experiment));
    }
  }
  return train_step(s, options, corpus);
}

// Returns the index of a step, or the number of steps if the step does not exist.
size_t number_of(const RecipeRun& run, const std::string& id) {
  const auto found =
      std::find_if(run.steps.begin(), run.steps.end(), [&](const StepRun& s) { return s.step.id == id; });
  return static_cast<size_t>(found - run.steps.begin());
}

// Selects the steps that `only` names and all steps that they need. If `only` names a training, the steps that measure
// only its model are also selected. If `only` is empty, all steps are selected.
std::vector<bool> wanted_steps(const RecipeRun& run, const std::vector<std::string>& only) {
  std::vector<bool> wanted(run.steps.size(), only.empty());
  for (const std::string& id : only) {
    const size_t n = number_of(run, id);
    if (n == run.steps.size()) {
      std::vector<std::string> ids;
      for (const StepRun& s : run.steps) ids.push_back(s.step.id);
      fail("repro", "--only: expected a step of {} ({}), found '{}'", run.recipe->name, fmt::join(ids, ", "), id);
    }
    wanted[n] = true;
    for (size_t other = 0; other < run.steps.size(); ++other) {
      if (measured_models(run.steps[other].step) == std::vector{id}) wanted[other] = true;
    }
  }
  for (size_t n = run.steps.size(); n-- > 0;) {  // a step comes after the steps that it needs
    if (!wanted[n]) continue;
    for (const std::string& needed : needed_steps(run.steps[n].step)) wanted[number_of(run, needed)] = true;
  }
  return wanted;
}

// Returns the indices of the steps in the order in which they run: all steps of the first seed run before the second
// seed.
std::vector<size_t> seed_by_seed(const RecipeRun& run) {
  std::vector<size_t> order(run.steps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return run.steps[a].step.seed < run.steps[b].step.seed; });
  return order;
}

void check_stop(const RecipeRun& run) {
  if (!stop_requested()) return;
  throw Interrupted(fmt::format("repro: {} stopped by {}; run the same command again to resume", run.recipe->name,
                                stop_signal_name(stop_signal())),
                    stop_signal());
}

void run_step(StepRun& s, const RecipeRun& run, const RunOptions& options, const fs::path& corpus) {
  const auto begin = Clock::now();
  StepRun chosen = s;
  chosen.step = with_choice(s.step, recorded_values(run));
  fs::create_directories(s.folder);
  Json values;
  try {
    values = measure_step(chosen, run, options, corpus);
  } catch (const Error&) {
    check_stop(run);  // if the run was stopped, training and measurements throw other errors, which check_stop replaces
    throw;
  }
  const double seconds = seconds_since(begin);
  s.record = {{"step", s.step.id},
              {"kind", name(s.step.kind)},
              {"model", s.step.model},
              {"settings", chosen.step.settings},
              {"inputs", recorded_inputs(s.step, steps_of(run), corpus)},
              {"device", device_name(options.conditions.device)},
              {"finished", today()},
              {"seconds", seconds},
              {"values", values}};
  write_file_atomic(s.folder / "record.json", s.record.dump() + "\n");
}

RecipeRun prepare_run(const Recipe& recipe, const RunOptions& options) {
  RecipeRun run{&recipe, options.conditions, {}, {}, "", today()};
  for (Step& step : recipe.plan(options.conditions)) run.steps.push_back({std::move(step), {}, {}, "", false});
  return run;
}

}  // namespace

std::vector<std::string> demo_text() {
  std::error_code ignored;
  for (const auto& version : fs::directory_iterator("/usr/share/perl", ignored)) {
    const fs::path pods = version.path() / "pod";
    if (!version.is_symlink() && fs::exists(pods / "perlfunc.pod")) return {pods.string()};
  }
  return {};
}

StepValues recorded_values(const RecipeRun& run) {
  return [&run](const std::string& id) -> const Json* {
    for (const StepRun& s : run.steps) {
      if (s.step.id == id && s.record.is_object()) return &s.record.at("values");
    }
    return nullptr;
  };
}

namespace {

// Returns the plan with its recorded results. If `again` is true, trainings are marked as not done if an unfinished
// step needs their models.
RecipeRun recorded_plan(const Recipe& recipe, const RunOptions& options, bool again) {
  RecipeRun run = prepare_run(recipe, options);
  const fs::path corpus = options.conditions.corpus.empty() ? made_corpus(options) : options.conditions.corpus;
  if (!needs_corpus(run) || fs::exists(corpus / "corpus.json")) {
    place_steps(run, options, corpus, TemporaryFolder().path);
  } else {
    for (StepRun& s : run.steps) s.left_out = missing(s.step, options);
  }
  use_records(run, options, TemporaryFolder().path);
  const std::vector<bool> wanted = wanted_steps(run, options.only);
  if (again) train_again(run, wanted);
  std::vector<StepRun> steps;
  for (size_t n = 0; n < run.steps.size(); ++n) {
    if (wanted[n]) steps.push_back(std::move(run.steps[n]));
  }
  run.steps = std::move(steps);
  return run;
}

}  // namespace

RecipeRun plan_recipe(const Recipe& recipe, const RunOptions& options) {
  return recorded_plan(recipe, options, /*again=*/true);
}

Results results_of(const RecipeRun& run) {
  std::map<std::string, Json> values;
  for (const StepRun& s : run.steps) {
    if (!s.record.is_object()) continue;
    if (s.step.part_of.empty())
      values[s.step.id] = s.record.at("values");
    else
      values[s.step.part_of].merge_patch(s.record.at("values"));
  }
  return {run.conditions.seeds, std::move(values)};
}

RecipeRun judge_finished(const Recipe& recipe, const RunOptions& options) {
  RecipeRun run = recorded_plan(recipe, options, /*again=*/false);
  bool any = false;
  std::string last;  // date on which the last step was finished
  for (StepRun& s : run.steps) {
    any |= s.found;
    if (s.found || !s.left_out.empty()) continue;
    s.left_out = "not run yet";
    ++run.unfinished;
  }
  for (const StepRun& s : run.steps) {
    if (s.found) last = std::max(last, s.record.value("finished", std::string()));
  }
  if (!last.empty()) run.date = last;
  if (any) run.findings = recipe.judge(run.conditions, results_of(run));
  return run;
}

RecipeRun run_recipe(const Recipe& recipe, RunOptions options) {
  for (const auto& [domain, folder] : options.conditions.domains) {
    if (!fs::is_directory(folder))
      fail("repro", "--domain {}={}: expected a folder, found {}", domain, folder.string(),
           fs::exists(folder) ? "a file" : "nothing");
  }
  if (!options.conditions.data.empty() && !fs::is_directory(options.conditions.data)) {
    fail("repro", "--data {}: expected a folder, found {}", options.conditions.data.string(),
         fs::exists(options.conditions.data) ? "a file" : "nothing");
  }
  for (const auto& [name, folder] : options.conditions.models) {
    if (!fs::exists(folder / "config.json"))
      fail("repro", "--model {}={}: expected a model folder, found {}", name, folder.string(),
           fs::is_directory(folder) ? "no config.json in it" : "no such folder");
  }
  RecipeRun run = prepare_run(recipe, options);
  const std::vector<bool> wanted = wanted_steps(run, options.only);
  fs::path corpus;
  if (needs_corpus(run)) {
    try {
      corpus = ensure_corpus(options);
    } catch (const Error&) {
      check_stop(run);
      throw;
    }
  }
  place_steps(run, options, corpus, scale_folder(options) / "configs");
  use_records(run, options, scale_folder(options) / "configs");
  train_again(run, wanted);
  size_t place = 0;
  for (const size_t n : seed_by_seed(run)) {
    StepRun& s = run.steps[n];
    ++place;
    if (!s.left_out.empty()) {
      log::info("{} {}/{} {}: skipped, {}", recipe.name, place, run.steps.size(), s.step.id, s.left_out);
      continue;
    }
    if (!wanted[n] && !s.found) {
      ++run.unfinished;
      continue;
    }
    check_stop(run);
    const fs::path given = given_folder(s.step);
    log::info("{} {}/{} {}{}", recipe.name, place, run.steps.size(), s.step.id,
              !s.evidence.empty() ? ": record " + s.evidence
              : s.found           ? ": already finished"
              : given.empty()     ? ""
                                  : ": " + given.string());
    if (!s.found) run_step(s, run, options, corpus);
  }
  if (run.unfinished == 0) run.findings = recipe.judge(run.conditions, results_of(run));
  return run;
}

}  // namespace lazy::repro
