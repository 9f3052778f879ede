#include "repro/evidence/states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "model/device.h"
#include "repro/configs.h"
#include "repro/cost.h"
#include "repro/evidence/record.h"

namespace lazy::repro {
namespace fs = std::filesystem;

std::string device_name(const std::string& device) {
  if (device == "cpu") return device;
  const std::string name = gpu_name(device);
  return name.empty() ? device : name;
}

train::TrainConfig run_config(const Protocol& protocol, const EvidenceRun& run, const fs::path& configs,
                              const fs::path& corpus, const fs::path& output, const std::string& device) {
  const Step step{run.id(), StepKind::train, "", {{"extends", protocol.extends}, {"overrides", run.overrides}}, ""};
  std::vector<std::string> more{"training.device=\"" + device + "\"", "metrics.log_every=1",
                                "metrics.tensorboard=false"};
  const int64_t each = train_config(step, configs, corpus, output, more).tokens_per_step();
  const auto steps_of = [each](int64_t tokens) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(tokens) / static_cast<double>(each)));
  };
  more.push_back(fmt::format("training.steps={}", (run.tokens + each - 1) / each));
  const int64_t validation = steps_of(protocol.validation_tokens);
  more.push_back(fmt::format("validation.every={}", validation));
  more.push_back(fmt::format("metrics.attention_every={}", validation));
  if (run.snapshot_every > 0) {
    more.push_back(fmt::format("checkpoint.every={}", steps_of(run.snapshot_every)));
    more.push_back("checkpoint.export=every");
  }
  return train_config(step, configs, corpus, output, more);
}

namespace {

constexpr double kTextTokens = 1.6e6;          // tokens of WikiText and LAMBADA, with and without BOS
constexpr double kBetween = 5, kSpare = 1.05;  // seconds added to every estimate, and factor by which it is multiplied

// Returns the estimated seconds from the FLOPs of the model and the speed of the device class (CPU or GPU).
double arithmetic_seconds(const Protocol& protocol, const EvidenceRun& run, const train::TrainConfig& config,
                          const std::string& device) {
  const auto source = speed_source(find_scale(device == "cpu" ? "tiny" : "small"), config.model);
  const double each = 1 / train::expected_speed(config, source)->tokens_per_second;
  const MeasureSizes& z = protocol.sizes;
  const double sinks = static_cast<double>(2 * z.sink_lengths.size() * static_cast<size_t>(z.sink_tokens));
  const double lengths =
      static_cast<double>(z.lengths.size()) * static_cast<double>(z.length_blocks * z.lengths.back());
  double measured = 2 * (static_cast<double>(z.heldout_tokens) + sinks + lengths) + kTextTokens;
  if (run.snapshot_every > 0) {
    const int64_t snapshots = run.tokens / run.snapshot_every;
    measured += static_cast<double>(snapshots) * (static_cast<double>(z.snapshot_tokens) + sinks);
  }
  return (static_cast<double>(run.tokens) + measured / 3) * each;
}

double recorded_seconds(const Json& record) {
  return record.at("seconds").at("training").get<double>() + record.at("seconds").at("measuring").get<double>();
}

// Sets the expected time of every run. It is the estimate from FLOPs, multiplied by the smallest ratio of recorded time
// to estimate on this device. The smallest ratio is used because slower runs may have shared the device.
void expect_seconds(const Protocol& protocol, const EvidenceOptions& options, std::vector<EvidenceState>& states) {
  const TemporaryFolder folder;
  write_configs(folder.path);
  const std::string here = device_name(options.device);
  const bool unknown_gpu = here == "cuda";  // when planning on a machine without a GPU, use the records of any GPU
  std::map<std::string, double> arithmetic;
  double fastest = 0;
  for (const EvidenceState& s : states) {
    const auto config = run_config(protocol, s.run, folder.path, "corpus", "run", "cpu");
    arithmetic[s.run.id()] = arithmetic_seconds(protocol, s.run, config, options.device);
    if (s.record.is_null()) continue;
    const std::string device = s.record.at("device").get<std::string>();
    if (unknown_gpu ? device == "cpu" : device != here) continue;
    const double ratio = recorded_seconds(s.record) / arithmetic.at(s.run.id());
    fastest = fastest > 0 ? std::min(fastest, ratio) : ratio;
  }
  for (EvidenceState& s : states) {
    s.expected_from_records = fastest > 0;
    s.expected_seconds = kBetween + kSpare * arithmetic.at(s.run.id()) * (fastest > 0 ? fastest : 1);
  }
}

void mark_waiting(const Protocol& protocol, std::vector<EvidenceState>& states) {
  std::map<std::string, const Json*> records;
  for (const EvidenceState& s : states) records[s.run.id()] = s.record.is_null() ? nullptr : &s.record;
  for (const EvidenceBlock& block : protocol.blocks) {
    const BlockCondition condition =
        block_condition(protocol, block, [&](const EvidenceRun& run) { return records.at(run.id()); });
    for (EvidenceState& s : states) {
      if (s.run.block == block.name && s.run.cell != block.condition) s.waits = condition.unmet;
    }
  }
}

}  // namespace

void update_states(const Protocol& protocol, const EvidenceOptions& options, std::vector<EvidenceState>& all) {
  expect_seconds(protocol, options, all);
  mark_waiting(protocol, all);
}

std::vector<EvidenceState> all_states(const Protocol& protocol, const EvidenceOptions& options,
                                      const std::string& corpus_fingerprint) {
  std::vector<EvidenceState> states;
  for (EvidenceRun& run : protocol.runs()) {
    Json record = read_record(options.records, protocol, run, corpus_fingerprint);
    states.push_back({std::move(run), std::move(record), {}});
  }
  update_states(protocol, options, states);
  return states;
}

std::vector<EvidenceState> selected_states(const Protocol& protocol, const EvidenceOptions& options,
                                           const std::vector<EvidenceState>& all) {
  std::vector<EvidenceState> out;
  for (const EvidenceRun& run : selected_runs(protocol, options.blocks, options.only)) {
    const std::string id = run.id();
    const auto found = std::find_if(all.begin(), all.end(), [&](const EvidenceState& s) { return s.run.id() == id; });
    out.push_back(*found);
  }
  return out;
}

std::vector<EvidenceState> evidence_states(const Protocol& protocol, const EvidenceOptions& options) {
  return selected_states(protocol, options, all_states(protocol, options, ""));
}

}  // namespace lazy::repro
