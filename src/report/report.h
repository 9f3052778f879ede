// The report: one self-contained HTML page with inline styles and figures. It needs no network and is readable on
// phones, on paper, and in light and dark mode. `lazy report` and `lazy sinks --report` use it; see
// docs/reference/report.md.
#pragma once
#include <string>
#include <vector>

#include "report/run.h"

namespace lazy::report {

struct PageInfo {
  std::string command;  // the command that created this page
  std::string date;     // "2026-11-21", shown in the page header
};

// Sections without data are omitted, and the section on runs and settings states why. Lazy runs come first in every
// figure.
std::string render(std::vector<RunData> runs, const PageInfo& info);

// The title of the page and the paragraph below it, computed from the runs, as plain text.
struct Headline {
  std::string title, detail;
};
Headline headline(const std::vector<RunData>& runs);

}  // namespace lazy::report
