// The length at which the documents of a short text are cut.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy {

// Bytes for `lazy data prepare --max-document`, so that a text of few files has enough documents to hold some out; 0:
// there are enough documents.
int64_t document_limit(const std::vector<std::string>& texts);

}  // namespace lazy
