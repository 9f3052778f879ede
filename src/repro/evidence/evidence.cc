#include "repro/evidence/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <thread>

#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/tokenizer.h"
#include "eval/tasks/documents.h"
#include "measure/model_measures.h"
#include "report/json_file.h"
#include "repro/configs.h"
#include "repro/evidence/record.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

constexpr double kTrained = 0.9;  // lower bound of the fraction of a run's time that is spent in training
// kSaving: seconds reserved for an interrupted training to finish its step and write a checkpoint. kWorthSplitting:
// minimum remaining time in seconds for starting a run that will be interrupted.
constexpr double kSaving = 15, kWorthSplitting = 60;

void check_inputs(const EvidenceOptions& options) {
  if (options.corpus.empty()) fail("repro", "training needs a corpus from `lazy data prepare`: pass --corpus DIR");
  if (!fs::exists(options.corpus / "corpus.json"))
    fail("repro", "--corpus {}: expected a corpus from `lazy data prepare`, found {}", options.corpus.string(),
         fs::exists(options.corpus) ? "no corpus.json" : "no such folder");
  if (options.data.empty())
    fail("repro", "the measurements need WikiText and LAMBADA: pass --data DIR with their files");
  for (const char* task : {"wikitext", "lambada_openai"})
    eval::find_task_files(eval::find_task(task), options.data, false);  // throws an Error that lists the file names
  std::error_code error;
  fs::create_directories(options.records, error);
  if (error) fail("repro", "--records {}: the folder is not writable: {}", options.records.string(), error.message());
  const fs::path probe = options.records / ".writable";
  try {
    write_file_atomic(probe, "");
  } catch (const Error& e) {
    fail("repro", "--records {}: the folder is not writable: {}", options.records.string(), e.what());
  }
  fs::remove(probe, error);
}

Json snapshots(const Protocol& protocol, const train::TrainConfig& config, ModelInputs inputs) {
  const fs::path exports = config.output / "exports";
  std::vector<fs::path> folders;
  if (fs::is_directory(exports)) folders = {fs::directory_iterator(exports), fs::directory_iterator()};
  std::sort(folders.begin(), folders.end());
  Json out = Json::array();
  for (const fs::path& folder : folders) {
    const std::string name = folder.filename().string();  // step-00000191
    const size_t dash = name.find('-');
    if (!name.starts_with("step-")) continue;
    inputs.model = folder;
    inputs.progress = false;
    Json found = {{"tokens", std::stoll(name.substr(dash + 1)) * config.tokens_per_step()}};
    found.update(measure_snapshot(inputs, protocol.sizes));
    out.push_back(std::move(found));
  }
  return out;
}

// Each top-level field is on a separate line, so that diffs between records are small.
std::string text_of(const Json& record) {
  std::string text = "{\n";
  for (const auto& [key, value] : record.items())
    text += fmt::format("{}{}: {}", text.size() > 2 ? ",\n" : "", Json(key).dump(), value.dump());
  return text + "\n}\n";
}

struct Finished {
  const Protocol& protocol;
  const EvidenceOptions& options;
  const EvidenceRun& run;
  const train::TrainConfig& config;
  std::string corpus_fingerprint;
};

Json record_of(const Finished& f, double training_seconds) {
  const fs::path run = f.config.output, model = run / "model";
  const ModelConfig trained = ModelConfig::from_directory(model);
  const auto tokenizer = load_tokenizer(model.string());
  const Json facts = report::load_json(run / "run.json");
  Json curves = training_curves(run / "log.jsonl", f.protocol.curve_points);
  const double speed = curves.at("tokens_per_second").get<double>();
  training_seconds =
      // Includes the time before the training was resumed.
      std::max(training_seconds, curves.at("seconds").get<double>());
  Json record{{"format", kEvidenceFormat},
              {"protocol", {{"version", f.protocol.version}, {"fingerprint", f.protocol.fingerprint}}},
              {"block", f.run.block},
              {"cell", f.run.cell},
              {"seed", f.run.seed},
              {"exploratory", f.run.exploratory},
              {"overrides", f.run.overrides},
              {"configuration", f.config.settings()},
              {"model", trained.to_json()},
              {"parameters", count_parameters(trained).total},
              {"tokens", f.config.steps * f.config.tokens_per_step()},
              {"tokens_per_step", f.config.tokens_per_step()},
              {"steps", f.config.steps},
              {"corpus",
               {{"fingerprint", f.corpus_fingerprint},
                {"tokens", facts.at("corpus").at("tokens")},
                {"passes", facts.at("corpus").at("parts").at(0).at("epochs")}}},
              {"tokenizer",
               {{"kind", tokenizer->kind()},
                {"vocab_size", tokenizer->vocab_size()},
                {"fingerprint", fmt::format("{:016x}", tokenizer->fingerprint())}}},
              {"device", device_name(f.options.device)},
              {"dtype", f.config.dtype},
              {"date", today()},
              {"version", LAZY_VERSION},
              {"tokens_per_second", speed},
              {"training", std::move(curves)}};
  const auto begin = Clock::now();
  const ModelInputs inputs{
      model, f.options.corpus, f.options.data, f.config.sequences, f.options.device, f.options.progress};
  record["measures"] = measure_model(inputs, f.protocol.sizes);
  if (f.run.snapshot_every > 0) record["snapshots"] = snapshots(f.protocol, f.config, inputs);
  record["seconds"] = {{"training", rounded(training_seconds)}, {"measuring", rounded(seconds_since(begin))}};
  return record;
}

void check_stop(const EvidenceRun& run) {
  if (!stop_requested()) return;
  throw Interrupted(fmt::format("repro: {} stopped by {}; run the same command again to resume", run.id(),
                                stop_signal_name(stop_signal())),
                    stop_signal());
}

// Returns the configuration of a run in a separate folder. The folder name contains a hash of everything that affects
// the numbers of the training.
train::TrainConfig config_in_folder(const Protocol& protocol, const EvidenceOptions& options, const EvidenceRun& run,
                                    const std::string& corpus) {
  const fs::path base = options.output / "evidence", configs = base / "configs";
  write_configs(configs);
  const auto planned = run_config(protocol, run, configs, options.corpus, "run", options.device);
  const std::string key =
      fmt::format("{:016x}", checksum(planned.settings().dump() + planned.model.to_json().dump() + corpus));
  return run_config(protocol, run, configs, options.corpus, base / (run.id() + "-" + key.substr(0, 10)),
                    options.device);
}

// Returns the fraction of a run's training steps that its newest checkpoint covers.
double saved_share(const train::TrainConfig& config) {
  const auto steps = train::CheckpointStore(config.output / "checkpoints", 0).steps();
  return steps.empty() ? 0 : static_cast<double>(steps.back()) / static_cast<double>(config.steps);
}

Json run_one(const Protocol& protocol, const EvidenceOptions& options, const EvidenceRun& run,
             const train::TrainConfig& config, const std::string& corpus) {
  const auto begin = Clock::now();
  Json record;
  try {
    train::train(config, /*resume=*/true);
    record = record_of({protocol, options, run, config, corpus}, seconds_since(begin));
  } catch (const Error&) {
    check_stop(run);  // if the run was stopped, training and measurements throw other errors, which check_stop replaces
    throw;
  }
  write_file_atomic(record_path(options.records, run), text_of(record));
  std::error_code ignored;
  fs::remove_all(config.output, ignored);
  return record;
}

// Raises SIGUSR1 in this process after a number of seconds, unless the object is destroyed earlier.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, std::chrono::duration<double>(std::max(0.0, seconds)), [this] { return over_; }))
            return;
          passed_ = true;
          std::raise(SIGUSR1);
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, passed_ = false;
  std::thread thread_;  // declared last because the thread uses the other members
};

}  // namespace

EvidenceOutcome run_evidence(const Protocol& protocol, const EvidenceOptions& options) {
  const auto begin = Clock::now();
  // Checks the names of blocks and runs before any records are read.
  selected_runs(protocol, options.blocks, options.only);
  check_inputs(options);
  const std::string corpus = corpus_fingerprint(options.corpus);
  std::vector<EvidenceState> all = all_states(protocol, options, corpus);
  const auto seconds_left = [&] { return options.seconds - seconds_since(begin); };
  // Whether a run fits into the remaining time. A run with a checkpoint needs less time.
  const auto fits = [&](const EvidenceState& s) {
    if (s.expected_seconds <= seconds_left()) return true;
    const double saved = saved_share(config_in_folder(protocol, options, s.run, corpus));
    return s.expected_seconds * (1 - kTrained * saved) <= seconds_left();
  };
  EvidenceOutcome outcome;
  while (true) {
    outcome.recorded = outcome.waiting = 0;
    outcome.too_long.clear();
    const EvidenceState* next = nullptr;
    const auto states = selected_states(protocol, options, all);
    for (const EvidenceState& s : states) {
      const std::string id = s.run.id();
      if (!s.record.is_null()) {
        ++outcome.recorded;
      } else if (!s.waits.empty()) {
        ++outcome.waiting;
      } else if (std::count(outcome.failed.begin(), outcome.failed.end(), id) > 0) {
        continue;
      } else if (options.seconds > 0 && !fits(s)) {
        outcome.too_long.push_back(id);
      } else if (!next) {
        next = &s;
      }
    }
    bool whole = true;
    if (!next && options.split && !outcome.too_long.empty() && seconds_left() > kWorthSplitting) {
      whole = false;
      next = &*std::find_if(states.begin(), states.end(),
                            [&](const EvidenceState& s) { return s.run.id() == outcome.too_long.front(); });
    }
    if (!next) return outcome;
    check_stop(next->run);
    log::info("{}: {} of {} runs recorded; training and measuring takes about {}{}{}", next->run.id(), outcome.recorded,
              states.size(), human_seconds(next->expected_seconds),
              next->expected_from_records ? "" : " (estimated from the model's FLOPs)",
              whole ? "" : fmt::format("; this call runs {} of it", human_seconds(seconds_left())));
    const auto own =
        std::find_if(all.begin(), all.end(), [&](const EvidenceState& s) { return s.run.id() == next->run.id(); });
    std::optional<Deadline> deadline;
    if (!whole) deadline.emplace(seconds_left() - kSaving);
    try {
      own->record = run_one(protocol, options, own->run, config_in_folder(protocol, options, own->run, corpus), corpus);
      ++outcome.ran;
      log::info("{}: recorded; training took {}, measuring {}", own->run.id(),
                human_seconds(own->record.at("seconds").at("training").get<double>()),
                human_seconds(own->record.at("seconds").at("measuring").get<double>()));
    } catch (const Interrupted& e) {
      if (!deadline || !deadline->passed()) throw;
      log::info("{}", e.what());
      outcome.stopped = own->run.id();
      return outcome;
    } catch (const RunError& e) {
      log::warn("{}: {}", own->run.id(), e.what());
      outcome.failed.push_back(own->run.id());
    }
    if (deadline && deadline->passed()) return ++outcome.recorded, outcome;
    update_states(protocol, options, all);
  }
}

}  // namespace lazy::repro
