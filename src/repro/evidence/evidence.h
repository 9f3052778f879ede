// `lazy repro evidence` trains the runs of the protocol that have no record yet, and measures the trained models. The
// work can be split over several calls.
//
//   RECORDS/BLOCK.CELL.seedK.json         the record of a finished run (record.h); no other output of the run is kept
//   OUTPUT/evidence/BLOCK.CELL.seedK-KEY/ a run in progress: resumed from its checkpoint, removed after it is recorded
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "repro/evidence/states.h"

namespace lazy::repro {

struct EvidenceOutcome {
  // Number of runs finished in this call, with a record, and waiting for a condition.
  int64_t ran = 0, recorded = 0, waiting = 0;
  // Runs that were skipped because of the time limit; runs that ended with an error.
  std::vector<std::string> too_long, failed;
  // The run that the next call will resume; empty if no run was interrupted.
  std::string stopped;
};

// Throws an Error if the corpus, the benchmark files or the records folder cannot be used. Throws Interrupted if a
// signal requested a stop; the training state is saved first. If a run fails, it gets no record and the next run
// starts.
EvidenceOutcome run_evidence(const Protocol& protocol, const EvidenceOptions& options);

}  // namespace lazy::repro
