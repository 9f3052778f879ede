// The report: one self-contained HTML page with inline styles and pictures, readable without a network, on a phone,
// on paper, on light and dark screens. `lazy report` and `lazy sinks --report` fill it; see docs/report.md.
#pragma once
#include <string>
#include <vector>

#include "report/run.h"

namespace lazy::report {

struct PageInfo {
  std::string command;  // that made this page
  std::string date;     // "2026-11-21", shown in the head
};

// Sections without data are left out, and the section "What was run" says why. Lazy runs come first in every picture.
std::string render(std::vector<RunData> runs, const PageInfo& info);

// The page's title and the paragraph below it, computed from the runs. Plain text.
struct Headline {
  std::string title, detail;
};
Headline headline(const std::vector<RunData>& runs);

}  // namespace lazy::report
