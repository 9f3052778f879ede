// Figures of the evidence page, drawn from the records. Each figure is an SVG file in the same folder as the page.
#pragma once
#include <string>
#include <vector>

#include "repro/evidence/claims.h"

namespace lazy::repro {

struct EvidenceFigure {
  std::string file;   // file name, for example "claim-sparsity.svg"
  std::string title;  // caption on the page; the label inside the SVG file describes the drawing
  std::string svg;
  std::string section;  // section of the page: a claim's name, "head-start" or "by-layer"
};

// Draws four kinds of figures: the measured value of each claim by cell and seed; the head start (difference of
// validation losses) over training by seed; for claims with a slope condition, the measured value over the snapshots of
// the block; and the measured values by layer. A figure without any recorded data is omitted.
std::vector<EvidenceFigure> evidence_figures(const EvidenceClaims& claims, const Protocol& protocol,
                                             const EvidenceRecords& records);

}  // namespace lazy::repro
