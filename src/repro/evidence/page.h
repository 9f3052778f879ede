// The page of `lazy repro evidence --report`: verdicts and tables from the records, as Markdown or JSON.
#pragma once
#include <string>

#include "repro/evidence/figures.h"

namespace lazy::repro {

// `figures` are the figures whose files are in the same folder as the page.
std::string evidence_page(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records,
                          const std::vector<EvidenceFigure>& figures);
// Returns the same numbers as JSON. A value is null if a record, an interval or a p-value is missing.
Json evidence_json(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records);

}  // namespace lazy::repro
