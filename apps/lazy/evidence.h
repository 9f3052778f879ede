// `lazy repro evidence`: the options of this command, and the function that runs it (evidence.cc).
#pragma once
#include <string>
#include <vector>

#include "command.h"

namespace lazy::cli {

struct EvidenceArguments {
  std::vector<std::string> blocks;
  std::string records = "docs/results/evidence", protocol;  // protocol: a file that replaces the built-in protocol
  std::string claims, page;  // claims: file that replaces the built-in claims; page: output file ("-": stdout)
  double seconds = 0;
  bool list = false, split = false;
};

// Options of `lazy repro` that recipes and evidence have in common.
struct SharedArguments {
  std::string corpus, data, output, device;
  std::vector<std::string> only;
  bool json = false, report = false;
};

void add_evidence_options(CLI::App& command, EvidenceArguments& arguments);
void run_evidence(const EvidenceArguments& arguments, const SharedArguments& shared);

}  // namespace lazy::cli
