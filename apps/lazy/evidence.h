// `lazy repro evidence`: the options of the protocol's runs, and the command (evidence.cc).
#pragma once
#include <string>
#include <vector>

#include "command.h"

namespace lazy::cli {

struct EvidenceArguments {
  std::vector<std::string> blocks;
  std::string records = "docs/results/evidence", protocol;  // a file in place of the built-in protocol
  std::string claims, page;  // a file in place of the built-in claims; the page to write, "-": standard output
  double seconds = 0;
  bool list = false, split = false;
};

// Options of `lazy repro` that evidence shares with recipes.
struct SharedArguments {
  std::string corpus, data, output, device;
  std::vector<std::string> only;
  bool json = false, report = false;
};

void add_evidence_options(Command command, EvidenceArguments& arguments);
void run_evidence(const EvidenceArguments& arguments, const SharedArguments& shared);

}  // namespace lazy::cli
