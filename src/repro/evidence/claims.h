// The claims of the evidence as data (configs/evidence-claims.toml), and their verdicts from the records. The unit is
// the seed: a claim gives one value a seed, which the judge of all recipes tests (judge.h).
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

// A path in a record, and one whose value is subtracted; empty: none.
struct RecordMeasure {
  std::string path, from;
};

// configs/evidence-claims.toml describes the keys.
struct EvidenceClaim {
  std::string name, text, rule, paper, differs, block, under_block, form, side;
  bool primary = false;
  RecordMeasure measure, under_measure;
  Words over, under, factors;
  double factor = 1, bound = 0, equal_within = 0;
  std::string needs_measure, sign_block, slope_block, slope_measure;
  Words needs_cells, sign_over, sign_under, slope_cells;
};

// Two levels of each factor; signs are -1 (low) and 1 (high), by cell.
struct FactorialDesign {
  std::string block;
  Words factors, low, high;
  std::map<std::string, std::vector<int>> signs;
};

// Cells of a block minus others over training.
struct HeadStart {
  std::string block;
  std::vector<double> tokens;
  Words over, under;
};

// Measures that have a value for each layer, of the mean of some cells beside that of others.
struct ByLayer {
  std::string block;
  Words over, under;
  std::vector<std::pair<std::string, std::string>> measures;  // name, path
};

struct EvidenceClaims {
  std::string parameters;
  Words differs;  // from the paper, in all claims
  Words pages;    // list items of Markdown: pages of other results
  std::vector<EvidenceClaim> claims;
  FactorialDesign design;
  std::vector<std::pair<std::string, RecordMeasure>> effects;
  std::vector<HeadStart> head_starts;
  ByLayer by_layer;  // no measures: none is shown
};

// Error names the place in `name`, and for an unknown key, cell or form the nearest known one.
EvidenceClaims read_claims(const std::string& text, const std::string& name, const Protocol& protocol);
EvidenceClaims embedded_claims(const Protocol& protocol);

// Records by id, BLOCK.CELL.seedK; runs without a record are absent.
struct EvidenceRecords {
  std::map<std::string, Json> json;
  std::filesystem::path folder;
  const Json* find(const EvidenceRun& run) const;
};
EvidenceRecords read_records(const std::filesystem::path& folder, const Protocol& protocol);

struct ClaimVerdict {
  Verdict verdict = Verdict::open;
  std::string note;                // why, with scale, tokens and seeds
  UnitEstimate effect;             // by_unit is empty without a complete seed
  std::optional<double> adjusted;  // Holm-adjusted p; of a claim that is not primary, p itself
};
// One for each claim. Primary claims share one Holm correction, in which one without a p counts as p = 1.
std::vector<ClaimVerdict> judge_claims(const EvidenceClaims& claims, const Protocol& protocol,
                                       const EvidenceRecords& records);

// A cell's side of an effect: the product of its signs of these factors.
int effect_sign(const FactorialDesign& design, const std::vector<int>& signs, const Words& factors);
// The contrast of some factors in the design, a value for every complete seed.
std::vector<double> contrast(const FactorialDesign& design, const Words& factors, const RecordMeasure& measure,
                             const Protocol& protocol, const EvidenceRecords& records);
// The number at a path of a record, of a list the mean of its numbers; Error names file, field, expected and found.
double number_at(const Json& record, const std::string& path, const std::string& file);
// One number an element of the list at a path, of a list in it the mean.
std::vector<double> numbers_at(const Json& record, const std::string& path, const std::string& file);
// The paired mean difference of the validation curve at a number of tokens, by complete seed.
std::map<int64_t, double> head_start(const HeadStart& h, double tokens, const Protocol& protocol,
                                     const EvidenceRecords& records);

}  // namespace lazy::repro
