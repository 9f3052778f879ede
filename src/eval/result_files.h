// Where results and records go.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "eval/results.h"

namespace lazy::eval {

// --output as it may be given: NAME.json is that very file, anything else a folder that receives results_<date>.json.
// Records go beside the results, as samples_<task>_<date>.jsonl. Error before anything is computed: a folder called
// NAME.json, a file in the folder's place.
void check_output(const std::filesystem::path& output);
// Records first: results that are there have all of theirs.
void write_results(const std::filesystem::path& output, const std::string& json,
                   const std::vector<TaskResult>& results);

}  // namespace lazy::eval
