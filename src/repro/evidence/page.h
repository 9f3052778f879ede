// The page of `lazy repro evidence --report`: verdicts and tables from the records, as Markdown or JSON.
#pragma once
#include <string>

#include "repro/evidence/claims.h"

namespace lazy::repro {

std::string evidence_page(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records);
// The same numbers; null where a record, an interval or a p is missing.
Json evidence_json(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records);

}  // namespace lazy::repro
