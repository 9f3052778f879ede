// A page about the study of `lazy eval --lengths` (docs/length.md): perplexity by length, loss by position, probes.
#pragma once
#include <string>

#include "report/json_file.h"
#include "report/report.h"

namespace lazy::report {

// Error names `file` and the field that is missing or wrong.
std::string render_lengths(const Json& study, const std::string& file, const PageInfo& info);

}  // namespace lazy::report
