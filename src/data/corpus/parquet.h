// Parquet files, read by a Python process with pyarrow that writes JSON lines into a pipe.
#pragma once
#include <memory>
#include <string>

#include "data/corpus/source.h"

namespace lazy {

// The rows of `column` (a dotted path reaches into structs) as JSON lines with that one field; rows without a value are
// left out and counted. The interpreter is $LAZY_PYTHON, else python3. What pyarrow needs in memory is a part of a row
// group, whatever the file's size. Error when Python, pyarrow or the column is missing, or the file is damaged.
// For kAllColumns every row whole: what a benchmark's documents are read by.
inline constexpr const char* kAllColumns = "*";
std::unique_ptr<ByteStream> open_parquet(const std::filesystem::path& path, const std::string& column);

}  // namespace lazy
