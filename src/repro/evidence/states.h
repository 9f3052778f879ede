// The runs of `lazy repro evidence` before they run: what is recorded, what waits for another block's outcome, how long
// each will take.
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
  std::filesystem::path corpus, data;  // data: WikiText and LAMBADA
  std::filesystem::path records = "docs/results/evidence", output = "repro";
  std::vector<std::string> blocks, only;  // empty: all
  double seconds = 0;                     // no run begins that is expected to end later than this; 0: no limit
  // With `seconds`: the first run that does not fit is begun all the same. It is stopped in time, as by a signal, and
  // goes on from its checkpoint the next time. Needs install_stop_handlers.
  bool split = false;
  std::string device = "cpu";
  bool progress = true;
};

struct EvidenceState {
  EvidenceRun run;
  Json record;                         // null while there is none
  std::string waits;                   // why it is not run now: the condition of its block; empty
  double expected_seconds = 0;         // training and measuring
  bool expected_from_records = false;  // else from the arithmetic of the model
};

// The selected runs, in order. Records of all runs of the protocol are read: Error for a damaged one. A corpus is not
// needed.
std::vector<EvidenceState> evidence_states(const Protocol& protocol, const EvidenceOptions& options);

// All runs of the protocol: conditions and expectations rest on those that are not selected, too. Records are compared
// with the corpus' fingerprint unless it is empty.
std::vector<EvidenceState> all_states(const Protocol& protocol, const EvidenceOptions& options,
                                      const std::string& corpus_fingerprint);
// Brings expectations and conditions up to date with the records.
void update_states(const Protocol& protocol, const EvidenceOptions& options, std::vector<EvidenceState>& all);
// Those that options select, in order.
std::vector<EvidenceState> selected_states(const Protocol& protocol, const EvidenceOptions& options,
                                           const std::vector<EvidenceState>& all);

// The configuration of a run. The corpus and the output may not exist yet. `configs`: see train_config.
train::TrainConfig run_config(const Protocol& protocol, const EvidenceRun& run, const std::filesystem::path& configs,
                              const std::filesystem::path& corpus, const std::filesystem::path& output,
                              const std::string& device);
// As in records: the GPU's name, "cuda" if it is unknown, "cpu".
std::string device_name(const std::string& device);

}  // namespace lazy::repro
