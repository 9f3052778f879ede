// The page of `lazy eval --lengths` (docs/guides/length.md): perplexity by length, loss by position, retrieval tasks.
#pragma once
#include <string>

#include "report/json_file.h"
#include "report/report.h"

namespace lazy::report {

// An Error names `file` and the field that is missing or wrong.
std::string render_lengths(const Json& results, const std::string& file, const PageInfo& info);

}  // namespace lazy::report
