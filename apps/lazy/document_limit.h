// Maximum document length for splitting short texts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy {

// Returns the number of bytes for `lazy data prepare --max-document` so that a text that consists of few files has
// enough documents for a validation split. 0: the documents are sufficient without a limit.
int64_t document_limit(const std::vector<std::string>& texts);

}  // namespace lazy
