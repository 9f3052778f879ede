// Pictures of the evidence page, drawn from the records: a file each, beside the page.
#pragma once
#include <string>
#include <vector>

#include "repro/evidence/claims.h"

namespace lazy::repro {

struct EvidenceFigure {
  std::string file;   // "claim-sparsity.svg"
  std::string title;  // on the page; the file's own label says what is drawn
  std::string svg;
  std::string section;  // of the page: a claim's name, "head-start", "by-layer"
};

// For each claim its measure by cell and seed; the head start over training by seed; for a claim with a slope its
// measure over the snapshots of its block; measures by layer. What has no record yet has no picture.
std::vector<EvidenceFigure> evidence_figures(const EvidenceClaims& claims, const Protocol& protocol,
                                             const EvidenceRecords& records);

}  // namespace lazy::repro
