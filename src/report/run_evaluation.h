// What `lazy eval` left in a run's folder.
#pragma once
#include "report/run.h"

namespace lazy::report {

// eval.json: held-out losses, WikiText's perplexity, accuracies.
void read_eval(const std::filesystem::path& path, RunData* run);
// lengths.json (`lazy eval --lengths`): held-out losses by length, of one model.
void read_lengths(const std::filesystem::path& path, RunData* run);

}  // namespace lazy::report
