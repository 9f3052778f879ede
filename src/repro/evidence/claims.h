// The claims that the recorded runs test, which are defined in configs/evidence-claims.toml, and the verdicts that
// follow from the records. The statistical unit is the seed: a claim yields one value per seed, and the statistical
// tests that all recipes share (judge.h) are applied to these values.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "repro/evidence/protocol.h"
#include "repro/judge.h"
#include "repro/plan.h"

namespace lazy::repro {

// `path` is the path of a number in a record. If `from` is not empty, the number at the path `from` is subtracted.
struct RecordMeasure {
  std::string path, from;
};

// The keys are described in configs/evidence-claims.toml.
struct EvidenceClaim {
  std::string name, text, rule, paper, differs, block, under_block, form, side;
  bool primary = false;
  RecordMeasure measure, under_measure;
  Words over, under, factors;
  double factor = 1, bound = 0, equal_within = 0;
  std::string needs_measure, sign_block, slope_block, slope_measure;
  Words needs_cells, sign_over, sign_under, slope_cells;
};

// A two-level factorial design. `signs` maps a cell to one sign per factor: -1 for the low level and 1 for the high
// level.
struct FactorialDesign {
  std::string block;
  Words factors, low, high;
  std::map<std::string, std::vector<int>> signs;
};

// The validation loss of the cells `over` minus the validation loss of the cells `under`, at several numbers of
// training tokens.
struct HeadStart {
  std::string block;
  std::vector<double> tokens;
  Words over, under;
};

// Measured quantities with one value per layer: the average over the cells `over` is compared with the average over the
// cells `under`.
struct ByLayer {
  std::string block;
  Words over, under;
  std::vector<std::pair<std::string, std::string>> measures;  // pairs (name, path in a record)
};

struct EvidenceClaims {
  std::string parameters;
  Words differs;  // differences from the paper that apply to all claims
  Words pages;    // Markdown list items that link to pages with other results
  std::vector<EvidenceClaim> claims;
  FactorialDesign design;
  std::vector<std::pair<std::string, RecordMeasure>> effects;
  std::vector<HeadStart> head_starts;
  ByLayer by_layer;  // if no quantities are listed, the section is omitted
};

// Errors name the position in the file `name` and suggest the nearest known key, cell or form.
EvidenceClaims read_claims(const std::string& text, const std::string& name, const Protocol& protocol);
EvidenceClaims embedded_claims(const Protocol& protocol);

// Records by id (BLOCK.CELL.seedK). Runs without a record have no entry.
struct EvidenceRecords {
  std::map<std::string, Json> json;
  std::filesystem::path folder;
  const Json* find(const EvidenceRun& run) const;
};
EvidenceRecords read_records(const std::filesystem::path& folder, const Protocol& protocol);

struct ClaimVerdict {
  Verdict verdict = Verdict::open;
  std::string note;                // the reason for the verdict, with scale, tokens and seeds
  UnitEstimate effect;             // by_unit is empty if no seed has all of its records
  std::optional<double> adjusted;  // Holm-adjusted p-value; the unadjusted p-value for claims that are not primary
};
// Returns one verdict per claim. One Holm correction covers all primary claims; a primary claim without a p-value is
// treated as p = 1.
std::vector<ClaimVerdict> judge_claims(const EvidenceClaims& claims, const Protocol& protocol,
                                       const EvidenceRecords& records);

// Returns the sign of a cell in an effect, which is the product of the cell's signs over the given factors.
int effect_sign(const FactorialDesign& design, const std::vector<int>& signs, const Words& factors);
// Returns the contrast for an interaction of the given factors, with one value per seed for which all records exist.
std::vector<double> contrast(const FactorialDesign& design, const Words& factors, const RecordMeasure& measure,
                             const Protocol& protocol, const EvidenceRecords& records);
// Returns the number at a path of a record, or the mean of the numbers if the path leads to a list. Errors name the
// file, the field, the expected value and the value found.
double number_at(const Json& record, const std::string& path, const std::string& file);
// Returns one number per element of the list at a path; if an element is itself a list, its mean is returned.
std::vector<double> numbers_at(const Json& record, const std::string& path, const std::string& file);
// Returns the mean paired difference of the validation loss after `tokens` training tokens, for each seed for which all
// records exist.
std::map<int64_t, double> head_start(const HeadStart& h, double tokens, const Protocol& protocol,
                                     const EvidenceRecords& records);

}  // namespace lazy::repro
