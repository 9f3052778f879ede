#include "evidence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "model/device.h"
#include "repro/evidence/evidence.h"
#include "repro/evidence/figures.h"
#include "repro/evidence/page.h"

namespace lazy::cli {

namespace {

using namespace lazy::repro;

std::string state_of(const EvidenceState& s) {
  if (!s.record.is_null()) {
    return fmt::format("recorded {}, {}", s.record.at("date").get<std::string>(),
                       s.record.at("device").get<std::string>());
  }
  return s.waits.empty() ? "to run" : s.waits;
}

void print_states(const Protocol& protocol, const std::vector<EvidenceState>& states, bool as_json) {
  Json all = Json::array();
  std::vector<std::vector<std::string>> rows{{"run", "tokens", "state", "seconds"}};
  int64_t left = 0;
  double seconds = 0;
  for (const EvidenceState& s : states) {
    const bool to_run = s.record.is_null() && s.waits.empty();
    if (to_run) ++left, seconds += s.expected_seconds;
    all.push_back({{"run", s.run.id()},
                   {"block", s.run.block},
                   {"cell", s.run.cell},
                   {"seed", s.run.seed},
                   {"exploratory", s.run.exploratory},
                   {"tokens", s.run.tokens},
                   {"recorded", !s.record.is_null()},
                   {"waits", s.waits},
                   {"expected_seconds", to_run ? Json(s.expected_seconds) : Json()}});
    rows.push_back({s.run.id() + (s.run.exploratory ? " (exploratory)" : ""),
                    human_count(static_cast<double>(s.run.tokens)), state_of(s),
                    to_run ? fmt::format("{:.0f}", s.expected_seconds) : ""});
  }
  if (as_json) {
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (const EvidenceBlock& block : protocol.blocks) fmt::print("{}: {}\n", block.name, block.question);
  fmt::print("\n{}\n{} of {} runs remain; they need about {}\n", markdown_table(rows, "lrlr"), left, states.size(),
             human_seconds(seconds));
}

// Writes the report about the existing records. This needs neither a corpus nor a device.
void report(const Protocol& protocol, const EvidenceArguments& a, bool as_json) {
  if (a.page.empty() && !as_json) fail("repro", "evidence --report: expected FILE.md, - or --json, found none");
  const EvidenceClaims claims =
      a.claims.empty() ? embedded_claims(protocol) : read_claims(read_file(a.claims), a.claims, protocol);
  const EvidenceRecords records = read_records(a.records, protocol);
  if (as_json) return fmt::print("{}\n", evidence_json(claims, protocol, records).dump(2));
  const std::vector<EvidenceFigure> figures = evidence_figures(claims, protocol, records);
  const std::string page = evidence_page(claims, protocol, records, figures);
  if (a.page == "-") return fmt::print("{}", page);
  for (const EvidenceFigure& figure : figures)
    write_file_atomic(std::filesystem::path(a.page).parent_path() / figure.file, figure.svg);
  write_file_atomic(a.page, page);
  log::info("evidence: {} of {} runs are recorded; {}", records.json.size(), protocol.runs().size(), a.page);
}

}  // namespace

void add_evidence_options(CLI::App& command, EvidenceArguments& a) {
  const std::string group = "evidence";
  add_repeated_option(command, "--block", a.blocks,
                      "Run this block of the protocol (may be repeated; default: all blocks, in order)")
      ->group(group);
  command
      .add_option("--seconds", a.seconds,
                  "Do not start runs that are expected to end later than this many seconds from now")
      ->check(kPositive)
      ->group(group);
  command
      .add_flag("--split", a.split,
                "With --seconds: also start the first run that would exceed the time limit, stop it at the limit, and "
                "resume it in the next call")
      ->group(group);
  command
      .add_option("--records", a.records,
                  "Folder of the records (one JSON file with the measurements of each run); recipes use these records "
                  "instead of training and measuring again")
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--list", a.list, "Run nothing: print the runs, which of them are recorded, and the expected seconds")
      ->group(group);
  command.add_option("--protocol", a.protocol, "Protocol file (default: the built-in configs/evidence.toml)")
      ->group(group);
  command
      .add_option("--claims", a.claims,
                  "File with the claims that --report tests (default: configs/evidence-claims.toml)")
      ->group(group);
}

void run_evidence(const EvidenceArguments& a, const SharedArguments& shared) {
  const Protocol protocol = a.protocol.empty() ? embedded_protocol() : read_protocol(read_file(a.protocol), a.protocol);
  if (shared.report) {
    if (a.list || !a.blocks.empty() || !shared.only.empty())
      fail("repro", "evidence --report: expected no --list, --block or --only, because a page covers all runs");
    return report(protocol, a, shared.json);
  }
  EvidenceOptions options;
  options.corpus = shared.corpus;
  options.data = shared.data;
  options.records = a.records;
  options.output = shared.output;
  options.blocks = a.blocks;
  options.only = shared.only;
  options.seconds = a.seconds;
  options.split = a.split;
  if (a.list) {
    options.device = shared.device == "auto" ? "cuda" : shared.device;  // the printed plan may be for another machine
    return print_states(protocol, evidence_states(protocol, options), shared.json);
  }
  options.device = resolve_device(shared.device);
  const EvidenceOutcome outcome = repro::run_evidence(protocol, options);
  log::info("evidence: {} runs finished in this call, {} runs recorded in total{}{}", outcome.ran, outcome.recorded,
            outcome.waiting > 0 ? fmt::format(", {} wait for conditions", outcome.waiting) : "",
            outcome.too_long.empty() ? "" : fmt::format(", {} postponed", outcome.too_long.size()));
  if (!outcome.stopped.empty()) log::info("evidence: repeat the command to continue {}", outcome.stopped);
  if (!outcome.failed.empty())
    fail_run("repro", "evidence: {} of the runs failed: {}", outcome.failed.size(), fmt::join(outcome.failed, ", "));
}

}  // namespace lazy::cli
