// Starts the Python package lazy_lab.run_report, which writes HTML pages about runs and results.
#pragma once
#include <string>
#include <vector>

namespace lazy::cli {

// Replaces this process by Python, which writes the page `output` about run folders or JSON files of results. `line` is
// the command line that the page shows.
[[noreturn]] void start_report(const std::vector<std::string>& inputs, const std::string& output,
                               const std::string& line);

// Writes a page about one result, given as JSON text, in a child process. Throws a RunError that names `operation` if
// the page was not written; Python has then printed the reason.
void write_result_page(const char* operation, const std::string& json, const std::string& output,
                       const std::string& line);

}  // namespace lazy::cli
