// `lazy repro evidence`: trains and measures the runs of the protocol that have no record yet, in pieces of time.
//
//   RECORDS/BLOCK.CELL.seedK.json         the record of a finished run (record.h); nothing else of it is kept
//   OUTPUT/evidence/BLOCK.CELL.seedK-KEY/ a run in progress: resumed from its checkpoint, removed once it is recorded
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "repro/evidence/states.h"

namespace lazy::repro {

struct EvidenceOutcome {
  int64_t ran = 0, recorded = 0, waiting = 0;  // runs of this call; selected runs with a record; those that wait
  std::vector<std::string> too_long, failed;   // left for want of time; ended with an error
  std::string stopped;                         // the run that goes on the next time; empty: none
};

// Error when the corpus, the benchmarks or the records folder cannot be used; Interrupted when a signal asked to stop,
// with the training's state saved. A run that fails is left without record, and the next one begins.
EvidenceOutcome run_evidence(const Protocol& protocol, const EvidenceOptions& options);

}  // namespace lazy::repro
