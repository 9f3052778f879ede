// The state of each run of `lazy repro evidence` before it starts: whether it is recorded, whether it waits for the
// outcome of a condition, and how long it will take.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "repro/evidence/protocol.h"
#include "repro/plan.h"
#include "train/config.h"

namespace lazy::repro {

struct EvidenceOptions {
  std::filesystem::path corpus, data;  // data: folder with WikiText and LAMBADA
  std::filesystem::path records = "docs/results/evidence", output = "repro";
  std::vector<std::string> blocks, only;  // empty lists select everything
  // Time limit in seconds: a run that is expected to end later does not start; 0: no limit.
  double seconds = 0;
  // Used together with `seconds`: the first run that exceeds the time limit is started anyway. It is stopped at the
  // limit as if by a signal, and the next call resumes it from its checkpoint. Requires install_stop_handlers.
  bool split = false;
  std::string device = "cpu";
  bool progress = true;
};

struct EvidenceState {
  EvidenceRun run;
  Json record;  // null if the run is not recorded
  // The condition of the block that is not fulfilled yet; empty if the run can start.
  std::string waits;
  double expected_seconds = 0;         // expected time for training and measurements
  bool expected_from_records = false;  // false: estimated from the model's FLOPs
};

// Returns the states of the selected runs in order. The records of all runs of the protocol are read, and a damaged
// record throws an Error. No corpus is needed.
std::vector<EvidenceState> evidence_states(const Protocol& protocol, const EvidenceOptions& options);

// Returns the states of all runs of the protocol, because conditions and expected times also depend on runs that are
// not selected. Unless the corpus fingerprint is empty, it is compared with the records.
std::vector<EvidenceState> all_states(const Protocol& protocol, const EvidenceOptions& options,
                                      const std::string& corpus_fingerprint);
// Updates the conditions and expected times from the records.
void update_states(const Protocol& protocol, const EvidenceOptions& options, std::vector<EvidenceState>& all);
// Returns the states that the options select, in order.
std::vector<EvidenceState> selected_states(const Protocol& protocol, const EvidenceOptions& options,
                                           const std::vector<EvidenceState>& all);

// Returns the training configuration of a run. The corpus and output folders do not need to exist yet. train_config
// explains `configs`.
train::TrainConfig run_config(const Protocol& protocol, const EvidenceRun& run, const std::filesystem::path& configs,
                              const std::filesystem::path& corpus, const std::filesystem::path& output,
                              const std::string& device);
// Returns the device name as stored in records: the name of the GPU, "cuda" if the name is unknown, or "cpu".
std::string device_name(const std::string& device);

}  // namespace lazy::repro
