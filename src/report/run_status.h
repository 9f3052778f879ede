// Whether a run is under way, and how far it is.
#pragma once
#include <string>

#include "report/run.h"

namespace lazy::report {

// Fills state and seconds_left of a run whose settings and log are read.
void find_status(RunData* run);
// "running, step 120 of 4000, 0:12:30 left", "stopped at step 120 of 4000"; nothing for a run that has ended or says
// too little.
std::string status_text(const RunData& run);

}  // namespace lazy::report
