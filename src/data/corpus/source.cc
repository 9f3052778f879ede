#include "data/corpus/source.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

std::optional<TextFormat> format_of(fs::path name) {
  if (name.extension() == ".parquet") return TextFormat::parquet;
  if (name.extension() == ".gz" || name.extension() == ".zst") name.replace_extension();
  const std::string ending = name.extension().string();
  if (ending == ".txt" || ending == ".text" || ending == ".md") return TextFormat::plain;
  if (ending == ".jsonl") return TextFormat::json_lines;
  if (ending == ".pod") return TextFormat::pod;
  return std::nullopt;
}

}  // namespace

std::vector<Source> find_sources(const std::vector<std::string>& inputs, TextFormat other) {
  std::vector<Source> sources;
  bool standard_input_seen = false;
  for (const std::string& input : inputs) {
    const fs::path path = input;
    if (input == "-") {
      if (standard_input_seen) fail("data", "standard input (-) is named twice");
      if (other == TextFormat::parquet) fail("data", "standard input: Parquet is read from regular files only");
      standard_input_seen = true;
      sources.push_back({path, other, 0});
      continue;
    }
    if (!fs::exists(path)) fail("data", "{}: no such file or folder", input);
    if (!fs::is_directory(path)) {
      const uint64_t bytes = fs::is_regular_file(path) ? fs::file_size(path) : 0;
      sources.push_back({path, format_of(path).value_or(other), bytes});
      continue;
    }
    std::vector<Source> found;
    try {
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (!entry.is_regular_file()) continue;
        if (const auto format = format_of(entry.path())) found.push_back({entry.path(), *format, entry.file_size()});
      }
    } catch (const fs::filesystem_error& e) {
      fail("data", "{}: {}", e.path1().string(), e.code().message());
    }
    if (found.empty()) {
      fail("data", "{}: expected .txt, .md, .jsonl, .pod (also .gz, .zst) or .parquet files, found none", input);
    }
    std::sort(found.begin(), found.end(),
              [](const Source& a, const Source& b) { return a.path.native() < b.path.native(); });
    sources.insert(sources.end(), found.begin(), found.end());
  }
  if (sources.empty()) fail("data", "no input: name files, folders or - for standard input");
  return sources;
}

}  // namespace lazy
